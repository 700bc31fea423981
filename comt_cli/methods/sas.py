r"""Self-Adaptive Scaling: learned weights on skip path, branch, and their normalised sum (SAS, 2019, Eq. 2, 4).

$$y = a x + b F + (1 - a)(1 - b)\,\mathrm{LN}(x + F)$$

a and b are one number per token, from two-layer tanh gates that read [x; F]. `gamma: free` is footnote 1: a third gate
replaces (1 - a)(1 - b). `gate: single-layer` is Table 6.
Deviations: Language models use RMSNorm instead of LayerNorm and keep the norm after the last block. The encoder-decoder
has LayerNorm and no norm after its stacks, like the Post-LN that SAS contains at a = b = 0. The last biases of the
gates start at +3 (a) and -3 (b) for images; the paper does not state them for text. Here they start at 0. With +3 and
-3 a network starts near y = x, with -3 and -3 near Post-LN. No public code is known.
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
            raise ValueError("gamma_bias: needs gamma: free; (1 - a)(1 - b) has no gate, leave the key out")
        return self
