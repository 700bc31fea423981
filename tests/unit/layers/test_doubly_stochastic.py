"""What mHC and mHC-lite mix their streams by: doubly stochastic matrices."""

from __future__ import annotations

import torch
from naive import normal

from comt_cli.layers.residual.manifold_hyper_connections import permutation_matrices, sinkhorn

D = 6


def test_sinkhorn_has_exact_rows_and_nearly_exact_columns():
    """Columns first: the rows are divided last."""
    M = sinkhorn(normal(50, 4, 4))
    torch.testing.assert_close(M.sum(-1), torch.ones(50, 4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(M.sum(-2), torch.ones(50, 4, dtype=torch.float64), rtol=0, atol=1e-3)
    one = sinkhorn(normal(4, 4), 1)
    assert (one.sum(-2) - 1).abs().max() > 1e-2
    assert (sinkhorn(300 * normal(20, 4, 4)).isfinite()).all()


def test_mixing_keeps_the_sum_of_the_streams():
    """Doubly stochastic matrices do, of any logits."""
    weights = torch.softmax(3 * normal(7, 24), -1)
    H_res = torch.einsum("tk,kij->tij", weights, permutation_matrices(4).double())
    streams = normal(7, 4, D)
    torch.testing.assert_close((H_res @ streams).sum(1), streams.sum(1))
    assert len({tuple(P.flatten().tolist()) for P in permutation_matrices(4)}) == 24
    assert torch.equal(permutation_matrices(4)[0], torch.eye(4))
