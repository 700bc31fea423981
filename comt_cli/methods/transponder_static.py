r"""Transponder without context: learned factors that do not read the input (2025, section 4.6, Table 4).

$$z = 2\sigma(\alpha\,\beta_1 \beta_2) \odot W x$$

On every projection; beta1 is a number, and beta2 has one number per channel.
Deviations: The paper does not state where beta1 and beta2 start. With beta1 = 1 and beta2 = 0 every factor is 1, and
beta2 has a gradient. alpha is kept positive as exp(log_alpha), as in `transponder`. In bf16-pure beta1 hardly changes:
the bf16 neighbours of 1 are further away than a step of Adam at 1e-3. beta2 and log_alpha, near 0, do change.
"""

from functools import partial

from comt_cli.methods.base import Method, ProjectionSites, ResidualName, Wiring, residual_connection
from comt_cli.tasks.base import PROJECTIONS


class TransponderStatic(Method):
    """`sites`: the projections that carry a factor; `learnable_sigmoid`: whether alpha is learned, or stays 1."""

    sites: ProjectionSites = PROJECTIONS
    residual: ResidualName = "pre-norm"
    learnable_sigmoid: bool = True

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import StaticGate

        gate = partial(StaticGate.at, learnable_sigmoid=self.learnable_sigmoid)
        return Wiring(residual_connection(self.residual), dict.fromkeys(self.sites, gate))
