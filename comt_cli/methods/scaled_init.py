r"""Scaled initialisation: Pre-LN whose output projections start smaller, by 1 / sqrt(2 L).

$$y = x + F(N(x)), \qquad W_o, W_{down} \sim \mathcal{N}(0,\ 0.02^2 / 2L)$$

Radford et al. 2019 (GPT-2), section 2.3; `scale_pre` in the scripts behind CoMT's table. With `additions: n` it is
1 / sqrt(n): with 4 what one reading of the code of Hyper-Connections does beside its four streams, without these.
Deviations: in language models RMSNorm for LayerNorm.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class ScaledInitMethod(ConnectionMethod):
    """`additions`: of how many the projections start as small; as many as the stream has if not given."""

    later = frozenset({"additions"})
    additions: Count | None = None
