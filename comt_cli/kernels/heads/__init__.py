"""Queries, keys and values: gated, q and k rotated."""
