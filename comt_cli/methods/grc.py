"""Gated Residual Connections: a gate per channel on what a sublayer adds to the skip path (Dhayalkar 2024).

y = r + g s, g = sigmoid(W_g . + b_g), r the skip path and s the sublayer's output.
Deviations: the paper's text says that the gate reads the "residual output", which can be r or s, and a third party has
[r; s]: `reads` chooses, and a table says which it is. On Pre-LN with RMSNorm; W_g starts as N(0, 0.02^2) and b_g at 0.
Both sublayers have a gate; one account of the paper gates the feed-forward network's alone. The primary text was not to
be had: this follows a digest of it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from comt_cli.methods.base import ConnectionMethod


class GRCMethod(ConnectionMethod):
    """`reads`: what the gate looks at."""

    name: ClassVar[str] = "grc"
    connection: ClassVar = "grc"
    reads: Literal["skip", "sublayer", "both"] = "skip"
