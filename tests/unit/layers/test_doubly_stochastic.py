"""What mixes streams: doubly stochastic matrices, and products of a few rows in the form that compiled code has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from naive import normal

from comt_cli.layers.residual.hyper_connections import normalised_products, read_streams, sinkhorn, write_streams

D = 6


@pytest.mark.parametrize("spread", [1, 300])
def test_sinkhorn(spread):
    """As in logarithms, also of logits that lie hundreds apart, where exponentials of a whole column would be 0: and
    its gradient. Columns first: the rows are divided last, and exact."""
    logits, weights = spread * normal(20, 4, 4), normal(20, 4, 4)
    found = []
    for each in (sinkhorn, _in_logarithms):
        of = logits.clone().requires_grad_()
        matrix = each(of)
        (matrix * weights).sum().backward()
        found.append((matrix.detach(), of.grad))
    torch.testing.assert_close(*(matrix for matrix, _ in found), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(*(gradient for _, gradient in found), rtol=1e-6, atol=1e-9)
    ones = torch.ones(20, 4, dtype=torch.float64)
    torch.testing.assert_close(found[0][0].sum(-1), ones, rtol=0, atol=1e-12)
    if spread == 1:
        torch.testing.assert_close(found[0][0].sum(-2), ones, rtol=0, atol=1e-3)
        assert (sinkhorn(logits, 1).sum(-2) - 1).abs().max() > 1e-2


def _in_logarithms(logits: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_mixtures_of_streams_are_what_they_are_called(compiled, static):
    """In both forms, and their gradients: the compiler's front end alone makes sums of the products."""
    torch._dynamo.reset()
    of = () if static else (3, 5)
    H, o, W = normal(3, 5, 4, D), normal(3, 5, D), normal(6, D)
    M, s = normal(*of, 4, 4), normal(*of, 4)
    Hbar = H / (H.square().mean(-1, keepdim=True) + torch.finfo(H.dtype).eps).sqrt()
    cases = [
        (read_streams, (H, s), (s.unsqueeze(-1) * H).sum(-2)),
        (write_streams, (H, M, s, o), (M @ H) + s.unsqueeze(-1) * o.unsqueeze(-2)),
        (write_streams, (H, None, s, o), H + s.unsqueeze(-1) * o.unsqueeze(-2)),
        (normalised_products, (H, W), F.linear(Hbar, W)),
    ]
    for function, given, expected in cases:
        run = torch.compile(function, backend="eager", fullgraph=True) if compiled else function
        inputs = [each if each is None else each.clone().requires_grad_() for each in given]
        torch.testing.assert_close(run(*inputs), expected)
        tensors = [each for each in inputs if each is not None]

        def of_tensors(*tensors, run=run, given=given):
            rest = iter(tensors)
            return run(*(None if each is None else next(rest) for each in given))

        assert torch.autograd.gradcheck(of_tensors, tensors)
    torch._dynamo.reset()
