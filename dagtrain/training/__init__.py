"""Training a graph in NumPy: data sets, what is fed to a graph, the emulator with its checkpoints."""
