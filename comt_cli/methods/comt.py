r"""CoMT: a scalar gate in (0, 1) on every projection (Zhang et al. 2025, Eq. 4 to 8, Figure A5a).

$$\gamma = \sigma(B\,\sigma(A x)), \qquad z = \gamma W x$$

Deviations: No biases, as in Eq. 4; the pseudo code's `nn.Linear` would add 21 numbers per block. The paper does not
state the initialisation of the modulators. The default is that of the pseudo code, and the model-wide initialisation
does not overwrite it. In the original scripts it did: `init: normal`.
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
