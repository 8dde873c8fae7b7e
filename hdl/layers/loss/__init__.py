"""Losses: where an error begins.

Their circuits stand in `hdl.engine.loss`.
"""
