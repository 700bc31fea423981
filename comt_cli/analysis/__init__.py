"""Observations of trained networks (gate values, residual stream, gradients) and their figures."""
