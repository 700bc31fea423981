"""Pre-LN, the LLaMA block (CoMT's and Transponder's baseline).

$$y = x + F(N(x))$$

Xiong et al. 2020, Eq. of Figure 1b.
Deviations: in language models RMSNorm for LayerNorm, as in LLaMA (Touvron et al. 2023); the norm after the last block
is theirs.
"""

from comt_cli.methods.base import ConnectionMethod


class PreLN(ConnectionMethod):
    """No options: the connection has none."""

    connection = "pre-norm"
