r"""Backout: a learned multiple of a middle block's output is subtracted at the end (nanochat, Karpathy 2026: code).

$$x = X_L - \lambda X_m$$

X_m is the output of block m, counted from 1, and x is what the final norm reads; blocks are Pre-LN. What only later
blocks need can thus be removed before the prediction. Defaults are those of nanochat (commit a825e63): lambda = 0.2 at
the start, so the start is not Pre-LN, and m = L / 2 + 1, rounded down. modded-nanogpt, the origin (its record 40, #140,
after #138), has lambda = 0.5 and the ninth of twelve blocks.
Deviations: lambda has the run's learning rate, nanochat's has the token embedding's, both without weight decay. It is
stored as its difference from the start.
"""

from pydantic import FiniteFloat

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class BackoutMethod(ConnectionMethod):
    """`start`: initial lambda; `blocks`: m."""

    start: FiniteFloat = 0.2
    blocks: Count | None = None
