r"""Gated Residual Connections: a gate per channel on the sublayer's output (Dhayalkar 2024).

$$y = r + g \odot s, \qquad g = \sigma(W_g r + b_g), \qquad s = F(N(r))$$

r is the skip path and s the output of the sublayer.
Deviations: The primary text was not available; this follows a digest. Each open point is an option that a table names.
`reads`: the gate reads the "residual output", which can be r or s; a third party has [r; s]. `at`: one account gates
only the feed-forward network. `norm`: the norm may precede the sublayer or follow the sum. W_g starts as N(0, 0.02^2)
and b_g at 0. Language models use RMSNorm.
"""

from typing import Literal

from comt_cli.methods.base import ConnectionMethod


class GRCMethod(ConnectionMethod):
    """`reads`: what the gate looks at; `at`: which connections have one; `norm`: before the sublayer or behind the
    sum."""

    later = frozenset({"at", "norm"})
    reads: Literal["skip", "sublayer", "both"] = "skip"
    at: Literal["all", "ffn"] = "all"
    norm: Literal["pre", "post"] = "pre"
