"""Codecs of gradients that copies exchange: what each element becomes, by its size."""
