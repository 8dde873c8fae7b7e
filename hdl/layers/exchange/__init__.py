"""What copies of a layer tell each other: gradients, once a batch."""
