"""Addition: y = x + F(x), the residual connection of ResNets (He et al. 2016a, Eq. 1; 2016b).

$$y = x + F(x)$$

The baseline of the image tables. Extra parameters of image classifiers are counted against it.
Deviations: none known. `models.resnet` states what ResNets leave open.
"""

from comt_cli.methods.base import ConnectionMethod


class Addition(ConnectionMethod):
    """No options: the connection has none."""

    connection = "pre-norm"
    streams = ("maps",)
