"""Post-LN: the block of the original Transformer (Vaswani et al. 2017, section 3.1).

$$y = N(x + F(x))$$

Deviations: Language models use RMSNorm instead of LayerNorm and keep the norm after the last block, as in the scripts
of the papers. The encoder-decoder is the paper's: LayerNorm, and no norm after its stacks.
"""

from comt_cli.methods.base import ConnectionMethod


class PostLN(ConnectionMethod):
    """No options: the connection has none."""

    connection = "post-norm"
