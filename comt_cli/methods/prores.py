r"""ProRes: residual branches are introduced one block after the other during training (2026, arXiv 2603.05369).

$$y = x + a F(N(x)), \qquad a = \min(t / (T l), 1)$$

t is the number of the update and l that of the block, from 1. T = 1000 as published, with 50 billion tokens; scale
`updates` with the length of the training.
Deviations: none known. a is not learned. Outside training a network keeps the a of its last update.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class ProResMethod(ConnectionMethod):
    """`updates` is T."""

    connection = "progressive"
    updates: Count = 1000
