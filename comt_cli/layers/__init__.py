"""What models are made of: projections with gates, residual connections, attention. Nothing here names a method."""
