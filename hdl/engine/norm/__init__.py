"""Online normalisation: the numbers of its statistics, shared with the golden model, and its data paths."""
