"""Value embeddings: rows of another table of the token ids, added to the values of attention (nanochat, Karpathy 2026).

Shapes: B batch, T tokens, D width, K key-value heads, E head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from comt_cli.layers.learned import NarrowGate
from comt_cli.layers.projection import TokenEmbedding


class ValueEmbedding(nn.Module):
    """v_h + s sigmoid(w_h x') e_h for the key-value heads h of one block, with s the `scale`. x' are the first
    `channels` channels of the input of the values; e is the token's row, which starts as N(0, 1 / D)."""

    def __init__(
        self, width: int, heads: int, head_width: int, vocabulary: int, scale: float = 3.0, channels: int = 12
    ) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.table = TokenEmbedding(vocabulary, heads * head_width, width**-0.5)
        self.gate = NarrowGate(width, heads, channels, start=0.02)

    def forward(self, v_BKTE: Tensor, x_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
        """Values, [B, K, T, E], with those of the tokens added. x is what v was computed from."""
        gate_BTK = self.scale * self.gate(x_BTD)
        e_BTKE = self.table(tokens_BT).unflatten(-1, (self.heads, -1))
        added_BKTE = (gate_BTK[..., None] * e_BTKE).transpose(1, 2)
        return v_BKTE + added_BKTE.to(v_BKTE.dtype)
