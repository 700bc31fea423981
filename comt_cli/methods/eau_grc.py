r"""EAU-like units with Gated Residual Connections (Dhayalkar 2024), the combination in its tables.

$$y = x + g \odot \mathrm{EAU}(F(N(x))), \qquad g = \sigma(W_g x + b_g)$$

`eau` on the attention output and `grc` at the residual connections, each with its options.
Deviations: those of `eau` and of `grc`.
"""

from functools import partial

from comt_cli.methods.base import Wiring, residual_connection
from comt_cli.methods.eau import Place, Share, eau_gates
from comt_cli.methods.grc import GRCMethod


class EAUWithGRC(GRCMethod):
    """`rank`, `place`: as of `eau`; `reads`, `at`, `norm`: as of `grc`."""

    name = "eau+grc"
    needs = ("attention", "sdpa")
    later = frozenset()
    rank: Share = 0.25
    place: Place = "after-o"

    def wiring(self) -> Wiring:
        of_grc = {key: getattr(self, key) for key in GRCMethod.model_fields}
        residual = partial(residual_connection(self.connection), **of_grc)
        return Wiring(residual, eau_gates(self.rank, self.place))
