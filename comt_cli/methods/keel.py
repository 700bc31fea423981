r"""KEEL: Post-LN whose skip path is weighted by the network's depth (2026, arXiv 2601.19895).

$$y = N_{out}(\alpha x + F(N_{in}(x))), \qquad \alpha = 2L$$

2L is the number of residual adds. The first add is plain Pre-LN, and the second has alpha = 1.
Deviations: none known; no public code is known. Language models use RMSNorm, as in the paper, and keep the norm after
the last block. alpha x + F is summed in the stream's type: in bf16, F is rounded as coarsely as alpha x, which is many
times as large. The paper trains KEEL with a larger learning rate than Pre-LN (largest stable rates at 64 blocks: 1.0e-2
and 7.7e-3), so one shared rate is not its best.
"""

from comt_cli.methods.base import ConnectionMethod


class KeelMethod(ConnectionMethod):
    """No options: the connection has none."""
