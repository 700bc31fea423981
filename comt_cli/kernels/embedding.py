"""Token ids to vectors, with PyTorch's own backward pass where a model is compiled.

Inductor would write that pass as `index_put_(accumulate=True)`. Under deterministic algorithms its CUDA kernel sorts
the ids and adds the rows of one id one after the other: a frequent token, or padding, has thousands in a batch. On a
CPU compiled code would add atomically, in any order. `embedding_dense_backward`, which runs where nothing is compiled,
is deterministic on both, and on CUDA divides the rows of one id among threads. As an operator of its own it is left as
it is.

Shapes: T tokens (any leading dimensions), D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def embedding(ids_T: Tensor, weight_VD: Tensor) -> Tensor:
    """The rows of `weight` that the ids name, [T, D], as `torch.nn.functional.embedding`."""
    if not torch.compiler.is_compiling():
        return F.embedding(ids_T, weight_VD)
    rows_TD: Tensor = _Embedding.apply(weight_VD, ids_T)  # type: ignore[no-untyped-call]
    return rows_TD


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, ids_T: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.vocabulary = len(weight_VD)
        return F.embedding(ids_T, weight_VD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (ids_T,) = ctx.saved_tensors
        return _embedding_backward(gradients[0], ids_T, ctx.vocabulary), None


@torch.library.custom_op("comt::embedding_backward", mutates_args=())
def _embedding_backward(gradient_TD: Tensor, ids_T: Tensor, vocabulary: int) -> Tensor:
    no_padding_id = -1
    dweight_VD: Tensor = torch.ops.aten.embedding_dense_backward(gradient_TD, ids_T, vocabulary, no_padding_id, False)
    return dweight_VD


@_embedding_backward.register_fake
def _(gradient_TD: Tensor, ids_T: Tensor, vocabulary: int) -> Tensor:  # noqa: ARG001 - what the operator is given
    return gradient_TD.new_empty(vocabulary, gradient_TD.shape[-1])
