"""Addition: y = x + F(x), the residual connection of ResNets (He et al. 2016a, Eq. 1; 2016b), with nothing added.

$$y = x + F(x)$$

It is the baseline of the image tables, and what extra parameters of image classifiers are counted against.
Deviations: none known; what a ResNet itself leaves open is said in `models.resnet`.
"""

from comt_cli.methods.base import ConnectionMethod


class Addition(ConnectionMethod):
    """No options: the connection has none."""

    connection = "pre-norm"
    streams = ("maps",)
