"""The steps of the command line, one module each: what a step depends on, what it leaves, each alone and resumable.
Work itself is done in the rooms below; terminals are known to `dagtrain.cli` alone.
"""
