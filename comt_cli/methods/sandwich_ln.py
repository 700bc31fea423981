"""Sandwich-LN: a norm before and after every branch (CogView, Ding et al. 2021, section 2.4).

$$y = x + N_2(F(N_1(x)))$$

N2 undoes a gate that scales the whole branch by one number per token. With this residual connection CoMT's gates at
o_proj and down_proj therefore have no effect.
Deviations: Language models use RMSNorm instead of LayerNorm, as in the scripts behind CoMT's table, which include this
method. Gemma 2 has it too; its gains are stored as their difference from 1. A test compares outputs and gradients with
`gemma2` of transformers.
"""

from comt_cli.methods.base import ConnectionMethod


class SandwichLNMethod(ConnectionMethod):
    """No options: the connection has none."""
