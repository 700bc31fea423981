"""Pre-LN: the LLaMA block, the baseline of CoMT and Transponder (Xiong et al. 2020, Figure 1b).

$$y = x + F(N(x))$$

Deviations: Language models use RMSNorm instead of LayerNorm, as in LLaMA (Touvron et al. 2023). The norm after the last
block is the paper's.
"""

from comt_cli.methods.base import ConnectionMethod


class PreLN(ConnectionMethod):
    """No options: the connection has none."""

    connection = "pre-norm"
