"""Observations of trained networks: the values of its gates, its residual stream, its gradients; and the figures of
them."""
