"""MyHDL as this project needs it: elaboration many times as fast, in several processes, and the ports of a block.

What depends on MyHDL's internals lives here and in `hdl.convert`, checked against the one version that is pinned.
Circuits do not.
"""
