"""Files of other programs -> forward graphs, one package a format.

An importer knows its format and the layers that there are; placement, circuits and training are not its concern, and
it never guesses: what it does not understand is an error with the name of the node.
"""
