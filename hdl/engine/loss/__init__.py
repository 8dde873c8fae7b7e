"""Softmax with cross-entropy: its numbers, shared with the golden model, and its circuit."""
