"""The sizes a recipe can name. Counts and shapes of the published LLaMA configurations, and a tiny one for laptops.

The papers' figures (public configuration files of the scripts they build on; 250m is 768 wide: Transponder's Table 7
prints 1024, which would count 355 million parameters and does not give its own parameter increases).
"""

from __future__ import annotations

from typing import Literal, NamedTuple


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


class ResNetSize(NamedTuple):
    """Block, blocks of each stage, and channels of the first stage; each stage after it has twice the channels.

    `basic` and `bottleneck` (four times as wide outside) are He et al. 2016a, `preact` is the two-layer block of 2016b.
    """

    block: Literal["basic", "bottleneck", "preact"]
    blocks: tuple[int, ...]
    width: int


RESNET_SIZES: dict[str, ResNetSize] = {
    "resnet18": ResNetSize("basic", (2, 2, 2, 2), 64),
    "resnet50": ResNetSize("bottleneck", (3, 4, 6, 3), 64),
    "resnet152": ResNetSize("bottleneck", (3, 8, 36, 3), 64),
    "preact-resnet110": ResNetSize("preact", (18, 18, 18), 16),
}
