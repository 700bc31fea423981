"""Train, measure and look inside networks with learnable or input-dependent residual connections."""

__version__ = "0.1.0"
