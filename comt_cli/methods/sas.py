r"""Self-Adaptive Scaling: learned shares of skip path, branch, and their normed sum (SAS, 2019, Eq. 2, 4).

$$y = a x + b F + (1 - a)(1 - b)\,\mathrm{LN}(x + F)$$

a and b are one number a token from two-layer tanh gates that read [x; F].
`gamma: free` is footnote 1, a third gate in the place of (1 - a)(1 - b); `gate: single-layer` is Table 6's.
Deviations: in language models RMSNorm for LayerNorm, and the norm behind the last block stays; the encoder-decoder has
LayerNorm and no norm behind its stacks, as the Post-LN that SAS contains at a = b = 0. The paper starts the gates' last
biases at +3 (a) and -3 (b) for images and does not say for text: 0 here; with +3 and -3 a network starts near y = x,
with -3 and -3 near Post-LN. No public code is known.
"""

from typing import Literal, Self

from pydantic import model_validator

from comt_cli.methods.base import ConnectionMethod


class SASMethod(ConnectionMethod):
    """`alpha_bias`, `beta_bias`, `gamma_bias`: where the gates' last biases start; `gate`: their form; `gamma`: the
    third share."""

    later = frozenset({"gate", "gamma", "gamma_bias"})
    alpha_bias: float = 0.0
    beta_bias: float = 0.0
    gate: Literal["two-layer", "single-layer"] = "two-layer"
    gamma: Literal["product", "free"] = "product"
    gamma_bias: float = 0.0

    @model_validator(mode="after")
    def _bias_has_a_gate(self) -> Self:
        if self.gamma == "product" and self.gamma_bias:
            raise ValueError("gamma_bias: belongs to gamma: free; (1 - a)(1 - b) has no gate, leave the key out")
        return self
