r"""DeepNorm with the two errors of the public scripts, under its own name (Li et al. 2024; Sun et al. 2025: code).

$$y = N(\alpha x + F(x)), \qquad \alpha = 2.83, \quad \beta = (8L)^{1/4}$$

alpha is the literal 2.8284271247461903, which is correct only for 32 layers. The gain of the initialisation is
(8L)^(+1/4); the method (Wang et al. 2022) has (8L)^(-1/4). The published DeepNorm baselines probably come from this
code. It is included to explain why they collapse and is not recommended; use `deepnorm`.
Deviations: none intended from those scripts. Their final norm is kept too.
"""

from comt_cli.methods.base import ConnectionMethod


class DeepNormMixLNCode(ConnectionMethod):
    """No options: the connection has none."""
