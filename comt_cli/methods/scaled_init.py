r"""Scaled initialisation: Pre-LN whose output projections start smaller by 1 / sqrt(2 L) (GPT-2, Radford et al. 2019).

$$y = x + F(N(x)), \qquad W_o, W_{down} \sim \mathcal{N}(0,\ 0.02^2 / 2L)$$

Section 2.3 of the report; `scale_pre` in the scripts behind CoMT's table. `additions: n` uses 1 / sqrt(n). With n = 4
this is the initialisation that one reading of Hyper-Connections' code has for four streams, without the streams.
Deviations: Language models use RMSNorm instead of LayerNorm.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class ScaledInitMethod(ConnectionMethod):
    """`additions`: of how many the projections start as small; as many as the stream has if not given."""

    later = frozenset({"additions"})
    additions: Count | None = None
