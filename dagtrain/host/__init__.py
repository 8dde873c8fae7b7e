"""The host's end of the network: streams to and from devices over one UDP socket.

`port` is what happens, without sockets or clocks: frames in, frames out, words of streams with credits.  `link` puts it
behind a UDP socket for asyncio.
"""
