"""Self-Adaptive Scaling: learned shares of skip path, branch, and their normed sum (SAS, 2019, Eq. 2, 4).

y = a x + b F + (1 - a)(1 - b) LN(x + F), a and b one number a token from two-layer tanh gates that read [x; F].
Deviations: RMSNorm for LayerNorm, and the norm behind the last block stays. The paper starts the gates' last biases at
+3 (a) and -3 (b) for images and does not say for text: 0 here. No public code is known.
"""

from __future__ import annotations

from typing import ClassVar

from comt_cli.methods.base import ConnectionMethod


class SASMethod(ConnectionMethod):
    """`alpha_bias`, `beta_bias`: where the last biases of the two gates start."""

    name: ClassVar[str] = "sas"
    connection: ClassVar = "sas"
    alpha_bias: float = 0.0
    beta_bias: float = 0.0
