"""What can be measured, by its names: those of operations, gates, types and variants. Torch-free, so that a name that
is none can be told at once."""

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
STEP_VARIANTS = {
    "transformers": "LlamaForCausalLM of the transformers library, as it comes",
    "transformers-compiled": "the same under torch.compile",
    "plain": "our LLaMA, Pre-LN, no gates, uncompiled",
    "plain-compiled": "the same under torch.compile",
    "plain-fused": "the same with our fused operations (rotation, SwiGLU, addition and norm), the rest compiled",
    "comt-eager": "CoMT, h = 2, at all seven projections: the reference path, uncompiled",
    "comt-compiled": "the same under torch.compile",
    "comt-fused": "the same with our fused operations, the rest compiled",
    "transponder-eager": "Transponder, r = 8, at all seven projections: the reference path, uncompiled",
    "transponder-compiled": "the same under torch.compile",
    "transponder-fused": "the same with our fused operations, the rest compiled",
}
"""Of a language model's training step."""
_SAME = {
    "compiled": "the same under torch.compile",
    "fused-eager": "the same with our fused operations (batch norm with gate, addition and ReLU), uncompiled",
    "fused": "the same, the rest compiled",
}
IMAGE_VARIANTS = {
    "torchvision": "torchvision's ResNet of that name, with this stem, uncompiled",
    "torchvision-compiled": "the same under torch.compile",
    "plain": "our ResNet, no modulators: the reference path, uncompiled",
    **{f"plain-{how}": meaning for how, meaning in _SAME.items()},
    "window-eager": "CoMT's sliding window, C_in // 64 filters, at the convolutions of all blocks: the reference path, "
    "uncompiled",
    **{f"window-{how}": meaning for how, meaning in _SAME.items()},
    "pixel-eager": "CoMT's pixel modulator, h = 2, at the norms of all blocks: the reference path, uncompiled",
    **{f"pixel-{how}": meaning for how, meaning in _SAME.items()},
}
"""Of an image classifier's training step."""
DECODE_VARIANTS = {
    "plain": "our LLaMA without gates",
    "plain-fused": "the same with our fused operations",
    "comt": "CoMT, h = 2, at all seven projections",
    "comt-fused": "the same with our fused operations",
    "transponder": "Transponder, r = 8, at all seven projections",
    "transponder-fused": "the same with our fused operations",
}
"""Of a model that speaks."""
