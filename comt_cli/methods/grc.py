r"""Gated Residual Connections: a gate per channel on what a sublayer adds to the skip path (Dhayalkar 2024).

$$y = r + g \odot s, \qquad g = \sigma(W_g r + b_g), \qquad s = F(N(r))$$

r is the skip path, s the sublayer's output.
Deviations: the primary text was not to be had, this follows a digest of it, and what that leaves open is an option,
which a table names. Its text says that the gate reads the "residual output", which can be r or s, and a third party has
[r; s]: `reads`. One account gates the feed-forward network alone: `at`. Where the norm stands is not said: `norm`,
before the sublayer or behind the sum. W_g starts as N(0, 0.02^2) and b_g at 0. Language models have RMSNorm.
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
