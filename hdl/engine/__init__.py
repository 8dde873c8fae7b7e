"""Circuits that layers are built of, and the numbers of those that golden model and circuit share.  An engine knows the
streams it is given and no layer; what several kinds of layers use is here, what one uses is in its file.
"""
