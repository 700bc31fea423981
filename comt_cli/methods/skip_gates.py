r"""Skip gates: outputs of the first half of blocks are added before blocks of the second half (modded-nanogpt 2025).

$$x' = x + g\,X_{L+1-i}, \quad g = \sigma(a)\,2\,\sigma(w\,N(x_0)_{1:12})$$

x is the stream before block i, counted from 1, x_0 the embedding, and N RMSNorm without a gain. The gate is that of
record 55 (`train_gpt.py`, #186): a = -1.5 and w = 0 at the start. `gate: scalar` is sigmoid(a) (#125, record 32),
`gate: weight` one learned number that starts at 1 (record 11). As in records 11 to 44, all blocks of the second half
are paired with one of the first, as in a U-Net; the first pair adds a block's output to itself, scaled. With an odd
number of blocks the middle one has none. The start is not Pre-LN.
Deviations: From record 45 on (#159), which record 55 follows, there is one skip connection only, from the output of the
fourth of 11 blocks to the input of the seventh. The gate there reads its stream's start, which is normalised; here that
is normalised for the gate alone. a, or the number, has no weight decay and is stored as its difference from the start;
w has the run's rate and decay.
"""

from typing import Literal

from comt_cli.methods.base import ConnectionMethod


class SkipGatesMethod(ConnectionMethod):
    """`gate`: form of g."""

    gate: Literal["token", "scalar", "weight"] = "token"
