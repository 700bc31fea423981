"""Building blocks of models: projections with gates, residual connections, attention. Nothing here names a method."""
