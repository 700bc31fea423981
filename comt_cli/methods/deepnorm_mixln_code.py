r"""DeepNorm with the two errors of the public scripts, under a name of its own (Li et al. 2024; Sun et al. 2025: code).

$$y = N(\alpha x + F(x)), \qquad \alpha = 2.83, \quad \beta = (8L)^{1/4}$$

alpha is the literal 2.8284271247461903, right for 32 layers alone, and the gain of the initialisation is (8L)^(+1/4)
where the method (Wang et al. 2022) has (8L)^(-1/4). The published DeepNorm baselines probably come from this: it is
here to explain why they collapse, and is no recommendation. `deepnorm` is the method.
Deviations: none intended, from those scripts; their final norm stays too.
"""

from comt_cli.methods.base import ConnectionMethod


class DeepNormMixLNCode(ConnectionMethod):
    """No options: the connection has none."""
