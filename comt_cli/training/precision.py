"""Precision by name.

`fp32`       everything in 32 bits
`bf16-mixed` weights, gradients and optimiser states in fp32; matrix products in bf16 (autocast)
`bf16-pure`  everything in bf16, as in the papers' scripts: no fp32 copy of the weights. A weight near 1 then does not
             move under a step smaller than bf16's spacing there; the recipes for the paper scale use it all the same.
"""

from __future__ import annotations

import contextlib

import torch

from comt_cli.recipe.settings import Precision


def parameter_dtype(precision: Precision) -> torch.dtype:
    """The type that weights and optimiser states have."""
    return torch.bfloat16 if precision == "bf16-pure" else torch.float32


def product_dtype(precision: Precision) -> torch.dtype:
    """The type that matrix products have."""
    return torch.float32 if precision == "fp32" else torch.bfloat16


def compute_context(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context that forward passes run in."""
    if precision == "bf16-mixed":
        # No weight is used twice in a pass, so keeping its bf16 copy to the end of it would serve nothing; and under
        # FSDP the copies of all blocks together are the whole model, which no device was to hold.
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
    return contextlib.nullcontext()
