r"""CoMT: a scalar gate in (0, 1) on every projection (Zhang et al. 2025, Eq. 4 to 8, Figure A5a).

$$\gamma = \sigma(B\,\sigma(A x)), \qquad z = \gamma W x$$

Deviations: no biases, as in Eq. 4 (the pseudo code's `nn.Linear` would add 21 numbers a block). The paper does not
state the modulators' initialisation: the default is what its pseudo code would do, and it survives the model-wide
initialisation, which in the original scripts overwrote it (`init: normal` is that).
"""

from functools import partial
from typing import Literal

from comt_cli.methods.base import Method, ProjectionSites, ResidualName, Wiring, residual_connection
from comt_cli.recipe.settings import GateInit, Width
from comt_cli.tasks.base import PROJECTIONS


class CoMT(Method):
    """`hidden`: the modulator's width h; `sites`: the projections that carry one; `scale` times the sigmoid."""

    later = frozenset({"scale"})
    hidden: Width = 2
    sites: ProjectionSites = PROJECTIONS
    residual: ResidualName = "pre-norm"
    init: GateInit = "torch-linear"
    scale: Literal[1, 2] = 1

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import ComtGate

        gate = partial(ComtGate.at, hidden=self.hidden, init=self.init, scale=self.scale)
        return Wiring(residual_connection(self.residual), dict.fromkeys(self.sites, gate))
