"""What can be measured, by its names: operations, gates, types, and the variants of decoding. Torch-free, so that
a wrong name is refused at once."""

from __future__ import annotations

OPS = {
    "heads": "gates of q, k and v, and rotary positions",
    "swiglu": "gates of gate and up, and SwiGLU",
    "add_norm": "a gate, the residual addition, and the norm behind it",
    "modulate": "gates alone",
    "projection": "a matrix product and its gates",
}
"""The operations that kernels are timed on."""
GATES = {"none": "pre-ln", "comt-r2": "comt", "transponder-r8": "transponder"}
"""Kinds of gates, and the method whose gates they are."""
DTYPES = ("bf16", "fp32")
DECODE_VARIANTS = {
    "plain": "our LLaMA without gates",
    "plain-fused": "the same with our fused operations",
    "comt": "CoMT, h = 2, at all seven projections",
    "comt-fused": "the same with our fused operations",
    "transponder": "Transponder, r = 8, at all seven projections",
    "transponder-fused": "the same with our fused operations",
}
"""Of a model that generates text."""
TRANSLATION_VARIANTS = {
    "plain": "our Post-LN encoder-decoder, with its cache of keys and values",
    "plain-uncached": "the same, which reads all tokens so far again in every step, and the source once",
    "sas": "SAS at all junctions, with the cache",
    "marian": "MarianMTModel of the transformers library, the same sizes, `generate` with its cache",
}
"""Of one that translates."""
