"""The sizes a recipe can name. Counts and shapes of the published LLaMA configurations, and a tiny one for laptops.

The papers' figures (public configuration files of the scripts they build on; 250m is 768 wide: Transponder's Table 7
prints 1024, which would count 355 million parameters and does not give its own parameter increases).
"""

from __future__ import annotations

from typing import NamedTuple


class LlamaSize(NamedTuple):
    """Widths and depth of a LLaMA; the vocabulary comes from the tokenizer."""

    width: int
    ffn_width: int
    layers: int
    heads: int


LLAMA_SIZES: dict[str, LlamaSize] = {
    "tiny": LlamaSize(width=128, ffn_width=344, layers=4, heads=4),
    "60m": LlamaSize(width=512, ffn_width=1376, layers=8, heads=8),
    "71m": LlamaSize(width=512, ffn_width=1368, layers=12, heads=8),
    "130m": LlamaSize(width=768, ffn_width=2048, layers=12, heads=12),
    "250m": LlamaSize(width=768, ffn_width=2560, layers=24, heads=16),
    "350m": LlamaSize(width=1024, ffn_width=2736, layers=24, heads=16),
    "1b": LlamaSize(width=2048, ffn_width=5461, layers=24, heads=32),
}
