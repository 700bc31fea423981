r"""mHC: Hyper-Connections whose streams are mixed by doubly stochastic matrices (DeepSeek-AI 2025, arXiv 2512.24880).

$$x' = H_{res}\,x + H_{post}\,F(N(H_{pre}\,x)), \qquad
H_{pre} = \sigma(\alpha \hat{x} \phi + b), \quad
H_{post} = 2\sigma(\ldots), \quad H_{res} = \mathrm{Sinkhorn}(\exp(\ldots))$$

Sinkhorn has 20 iterations, columns before rows.
Deviations: The paper states neither the start of b and phi nor how streams are read after the last block. Here their
sum is read. By default (`start: pre-ln`) the start is Pre-LN except for H_post = 1 and the norm, which removes the
scale of the branch's input; reading is staggered. `mhc-lite` is the start of mHC-lite's code, `random` is close to
Megatron-LM's. While streams are equal, gradients of H_res are below Adam's epsilon of 1e-8, so a short training hardly
changes it from either start (720 updates: results/evening/ours/README.md). b and alpha have no weight decay. The norm
of the n streams has no gain.
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
