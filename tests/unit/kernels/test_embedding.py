"""What a compiler makes of an embedding, up to code: the eager gradients, and none by `index_put_`."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from same_bits import Reason, assert_same_bits
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from comt_cli.layers.projection import TokenEmbedding


def gradient(of: TokenEmbedding, forward, ids: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(forward(ids).float().square().sum() / 3, of.weight)[0]


@pytest.mark.parametrize("ids", [[[3, 0, 3, 3, 1], [3, 3, 7, 3, 10]], 5, []], ids=["often", "one", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_compiled_backward_pass_is_the_eager_one(dtype, ids):
    """With the rewriting that Inductor has PyTorch do first, which is where `index_put_` would come from."""
    torch._dynamo.reset()
    called: list[str] = []

    def note(graph, _inputs):
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note, bw_compiler=note, decompositions=select_decomp_table())
    ids, of = torch.tensor(ids, dtype=torch.long), TokenEmbedding(11, 3, 1.0).to(dtype)
    torch.nn.init.normal_(of.weight, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(of.forward, backend=backend, dynamic=False, fullgraph=True)
    assert_same_bits(compiled(ids), of(ids), Reason.MOVED)
    unit = 2**-7 if dtype is torch.bfloat16 else 2**-22  # some roundings of a sum of five rows
    torch.testing.assert_close(gradient(of, compiled, ids), gradient(of, of, ids), rtol=unit, atol=2 * unit)
    assert called.count("comt.embedding_backward.default") == 1
    assert not [name for name in called if "index_put" in name]
    torch._dynamo.reset()
