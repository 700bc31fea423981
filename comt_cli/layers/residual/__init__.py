"""Residual connections: how a block joins its skip path and its branch. One family a file; a class with a `name` is one
that recipes can name (`methods.connections`)."""
