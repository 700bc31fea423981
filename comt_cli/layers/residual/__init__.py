"""Residual connections: how a block joins its skip path and its branch. One family per file. A class with a `name` can
be named in recipes (`methods.base.residual_connections`)."""
