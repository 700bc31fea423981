"""Mix-LN: Post-LN in the first blocks, Pre-LN in the rest (Li et al. 2024, section 3).

Deviations: none known; the fraction was searched by its authors at 1B and used at every size.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field

from comt_cli.methods.base import Method, Wiring


class MixLNMethod(Method):
    """`fraction` of the blocks, rounded, are Post-LN."""

    name: ClassVar[str] = "mix-ln"
    fraction: Annotated[float, Field(ge=0, le=1)] = 0.25

    def wiring(self) -> Wiring:
        from comt_cli.layers.residual.mix_ln import MixLN

        return Wiring(partial(MixLN, fraction=self.fraction))
