"""Layers where the error begins."""
