r"""Start lambdas: learned weights on the stream and on the embedding before each block (nanochat, Karpathy 2026: code).

$$x' = \mathrm{PreLNBlock}(r x + m x_0)$$

x_0 is the embedding's RMSNorm without a gain, and the stream starts there. `start: identity`, nanochat's first version,
has r = 1 and m = 0. `graded`, the later versions, has r from 1.15 to 1.05 and m from 0.2 to 0.05 over the blocks. With
`normalised: false` the stream starts as the embedding itself, and the network starts as Pre-LN.
Deviations: nanochat has separate learning rates, 0.5 for m and 0.005 for r, next to 0.02 for matrices under another
optimiser (Muon), and separate betas. Here r has the run's rate and m `rate` times the run's, 100 as in nanochat. m has
no weight decay; r, stored as its difference from the start, has the run's. Branches do not start at zero here.
"""

from typing import Literal

from pydantic import PositiveFloat

from comt_cli.methods.base import ConnectionMethod


class StartLambdasMethod(ConnectionMethod):
    """`start`: where the weights begin; `normalised`: whether the stream begins at N(e); `rate`: of m, times the
    run's."""

    start: Literal["identity", "graded"] = "identity"
    normalised: bool = True
    rate: PositiveFloat = 100.0
