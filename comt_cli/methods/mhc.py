r"""mHC: Hyper-Connections whose streams are mixed by doubly stochastic matrices (DeepSeek-AI 2025, arXiv 2512.24880).

$$x' = H_{res}\,x + H_{post}\,F(N(H_{pre}\,x)), \qquad
H_{pre} = \sigma(\alpha \hat{x} \phi + b), \quad
H_{post} = 2\sigma(\ldots), \quad H_{res} = \mathrm{Sinkhorn}(\exp(\ldots))$$

Sinkhorn has 20 iterations, columns before rows. After the last block the sum of the streams is read. With `read_out:
learned` it has weights in (0, 1), made as H_pre from the last streams, as in DeepSeek-V4.
Deviations: The paper states neither the start of b and phi nor how streams are read after the last block. By default
(`start: pre-ln`) the start is Pre-LN except for H_post = 1 and the norm, which removes the scale of the branch's input;
reading is staggered. `mhc-lite` is the start of mHC-lite's code, `random` is close to Megatron-LM's. alpha is 0.01. The
learned read-out starts with b = 0, and with phi as in the blocks: without `random` all its weights are 1/2, and the
final norm removes this factor. While streams are equal, gradients of H_res are below Adam's epsilon of 1e-8, so a short
training hardly changes it from either start (720 updates: results/evening/ours/README.md). b and alpha have no weight
decay. The norm of the n streams has no gain.
A test compares outputs and gradients with `deepseek_v4` and `glm5_next` of transformers. What these do otherwise: They
add 1e-6 to H_pre and in every step of Sinkhorn, which the test sets to 0. They store the logits of H_res transposed.
They round H_res and H_post to the type of the streams before streams are mixed; here only the result is rounded. They
start with alpha = 1, b = 0 and phi from N(0, 0.02^2), so with 4 streams of width 768 logits start at about 1.
`glm5_next` reads the mean of the streams.
"""

from typing import ClassVar, Literal

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class MHC(ConnectionMethod):
    """`n` streams; `start`: where b and phi begin; `read_out`: what is read after the last block."""

    connection = "manifold-hyper-connections"
    fixes: ClassVar = {"mixing": "sinkhorn"}
    later = frozenset({"read_out"})
    n: Count = 4
    start: Literal["pre-ln", "mhc-lite", "random"] = "pre-ln"
    read_out: Literal["sum", "learned"] = "sum"
