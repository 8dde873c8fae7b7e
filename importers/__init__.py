"""Files of other programs to forward graphs.  Hardware, placement and training are unknown here."""
