"""Residual connections: how a block joins its skip path and its branch. One family a file; `methods.base` has the names
that recipes know them by."""
