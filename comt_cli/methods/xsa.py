r"""XSA, exclusive self-attention: outputs without their part along the token's own value (Zhai 2026, arXiv 2603.09078).

$$z_i = y_i - \frac{y_i \cdot v_i}{v_i \cdot v_i}\,v_i$$

y_i is the attention output of one head for token i, and v_i the token's own value. Heads that share keys and values
share v_i. It has no parameters. The first token attends to itself alone, so its z is zero except for rounding, which a
norm after the branch (`residual: sandwich-ln`) enlarges.
Deviations: The difference is computed in fp32; in bf16 some of what is taken away would remain.
"""

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


class ExclusiveAttention(Method):
    """No options of its own."""

    needs = ("heads",)
    residual: ResidualName = "pre-norm"

    def wiring(self) -> Wiring:
        from comt_cli.layers.attention import WithoutOwnValue

        return Wiring(residual_connection(self.residual), exclude=WithoutOwnValue)
