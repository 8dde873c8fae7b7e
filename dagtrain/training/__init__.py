"""Training without hardware: data sets, what is fed to the host's inputs, and the fast emulator that trains bit by bit
as the hardware does.

What an operator means stands in its layer's golden model; here it is only computed faster, never otherwise.
"""
