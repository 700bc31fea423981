r"""mHC: Hyper-Connections whose streams are mixed by doubly stochastic matrices (DeepSeek-AI 2025, arXiv 2512.24880).

$$x' = H_{res}\,x + H_{post}\,F(N(H_{pre}\,x)), \qquad
H_{pre} = \sigma(\alpha \hat{x} \phi + b), \quad
H_{post} = 2\sigma(\ldots), \quad H_{res} = \mathrm{Sinkhorn}(\exp(\ldots))$$

Sinkhorn has 20 iterations, columns before rows.
Deviations: the paper says neither where b and phi start nor how streams are read behind the last block. By default
(`start: pre-ln`) the start is Pre-LN, up to H_post = 1 and the norm, which takes the read's size away, with staggered
reading; `mhc-lite` is the start of mHC-lite's code, `random` near Megatron-LM's. With equal streams H_res has gradients
below Adam's epsilon of 1e-8, and a short training hardly moves it from either start (720 updates:
results/evening/ours/README.md). The streams' sum is read; b and alpha have no weight decay; the n-stream norm no gain.
"""

from typing import ClassVar, Literal

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class MHC(ConnectionMethod):
    """`n` streams; `start`: where b and phi begin."""

    connection = "manifold-hyper-connections"
    fixes: ClassVar = {"mixing": "sinkhorn"}
    n: Count = 4
    start: Literal["pre-ln", "mhc-lite", "random"] = "pre-ln"
