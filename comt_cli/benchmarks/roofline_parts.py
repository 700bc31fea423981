"""The speeds that predictions rest on."""

from __future__ import annotations

BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 790e12
"""What copies and dense bf16 products reach on an H200; the maker's numbers are higher."""

Ratios = tuple[float, float]
"""Of the training step and of the forward pass."""
