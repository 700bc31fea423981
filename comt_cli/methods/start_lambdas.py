r"""Start lambdas: learned weights on the stream and on the embedding before each block (nanochat, Karpathy 2026: code).

$$x' = y + F(N(y)), \qquad y = r x + m x_0$$

x_0 is the embedding's RMSNorm without a gain, and the stream begins there.
`start: identity` has r = 1, m = 0, as the first version; `graded` has r from 1.15 to 1.05 and m from 0.2 to 0.05 over
the blocks, as later ones.
Deviations: there the two have learning rates of their own, 0.5 for m and 0.005 for r, beside rates of 0.02 for matrices
under another optimiser (Muon) and betas of their own. Here r has the run's rate and m `rate` times it, 100 as there;
m has no weight decay, and r, stored as what it differs from its start by, has that of the run. Branches do not start at
zero here. With `normalised: false` the stream begins at the embedding itself, and at the start the network is Pre-LN.
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
