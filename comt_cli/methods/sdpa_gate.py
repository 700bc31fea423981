r"""SDPA-Gate: a sigmoid gate on the attention output, before the output projection (Qiu et al. 2025, position G1).

$$O = (\mathrm{SDPA} \odot \sigma(X W_g))\,W_o$$

X is the normalised input, which the query projection also reads. W_g is D x D (element-wise) or D x H (head-wise) and
starts as N(0, 0.02^2), so gates start near 1/2. With `reads`, gates read only the first channels of X: 12 in
modded-nanogpt (pull request 117), D/16 in Marin (issue 4716), both head-wise.
Deviations: The narrow gates of both start at W_g = 0; Marin's follows exclusive self attention. A test compares outputs
and gradients with `qwen3_next` (element-wise) and `step3p7` (head-wise) of transformers. These also normalise queries
and keys, which the test leaves out. `qwen3_next` has the gate's rows in its query projection, head by head.
Transponder's table gives its "SDPA-Gate" 15 to 23 % more parameters, which neither variant has (3.6 to 5.7 %, and 0.06
to 0.12 %). That row is `full-rank-gate`.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


def _number_or_share(given: float) -> float:
    if given <= 0 or (isinstance(given, float) and given >= 1):
        raise ValueError(f"{given!r} is neither a number of channels (without a point) nor a share between 0 and 1")
    return given


class SDPAGate(Method):
    """`granularity`: a factor for every channel, or one for a head; `scale`: factor of the sigmoid; `reads`: number of
    channels that it reads, or a share below 1 (all if None)."""

    needs = ("sdpa",)
    later = frozenset({"scale", "reads"})
    granularity: Literal["elementwise", "headwise"] = "elementwise"
    scale: Literal[1, 2] = 1
    reads: Annotated[int | float, AfterValidator(_number_or_share)] | None = None
    residual: ResidualName = "pre-norm"

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import FullRankGate, HeadGate

        gate = FullRankGate if self.granularity == "elementwise" else HeadGate
        return Wiring(
            residual_connection(self.residual), {"sdpa": partial(gate.at, scale=self.scale, reads=self.reads)}
        )
