r"""ProRes: residual branches that come in one block after the other as training goes on (2026, arXiv 2603.05369).

$$y = x + a F(N(x)), \qquad a = \min(t / (T l), 1)$$

At update t in block l, from 1; T = 1000 as published, with 50 billion tokens.
Deviations: none known; a is not learned, and a network out of training keeps the a of its last update. Give `updates`
in proportion where training is shorter.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class ProResMethod(ConnectionMethod):
    """`updates` is T."""

    connection = "progressive"
    updates: Count = 1000
