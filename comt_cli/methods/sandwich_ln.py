"""Sandwich-LN: a norm before and behind every branch.

$$y = x + N_2(F(N_1(x)))$$

Ding et al. 2021 (CogView), section 2.4.
A gate that scales a whole branch's output, one number a token, is undone by N2: with this residual connection CoMT's
gates at o_proj and down_proj have no effect.
Deviations: in language models RMSNorm for LayerNorm, as in the scripts behind CoMT's table, which also have this
method.
"""

from comt_cli.methods.base import ConnectionMethod


class SandwichLNMethod(ConnectionMethod):
    """No options: the connection has none."""
