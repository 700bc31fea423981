r"""KEEL: Post-LN whose skip path is weighted by the network's depth (2026, arXiv 2601.19895).

$$y = N_{out}(\alpha x + F(N_{in}(x))), \qquad \alpha = 2L$$

2L is the number of adds. The first add is plain Pre-LN, the second has
alpha = 1.
Deviations: none known; no public code is known. In language models RMSNorm, as there; the norm behind the last block
stays. alpha x + F is a sum in the stream's type: in bf16 F is rounded as coarsely as alpha x, which is many times as
large. The paper trains it with a larger learning rate than Pre-LN (its largest stable one at 64 blocks: 1.0e-2 beside
7.7e-3): at one shared rate it is not at its best.
"""

from comt_cli.methods.base import ConnectionMethod


class KeelMethod(ConnectionMethod):
    """No options: the connection has none."""
