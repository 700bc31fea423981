"""Train, measure and look inside networks with learnable or input-dependent residual connections."""

from comt_cli import torchvision_hook as torchvision_hook  # which is at work from here on

__version__ = "0.1.0"
