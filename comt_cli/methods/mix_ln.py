r"""Mix-LN: Post-LN in the first blocks, Pre-LN in the rest (Li et al. 2024, section 3).

$$y = N(x + F(x)) \;\text{ in the first blocks}, \qquad y = x + F(N(x)) \;\text{ in the rest}$$

Deviations: none known. The authors tuned the fraction at 1B and used it at every size.
"""

from typing import Annotated

from pydantic import Field

from comt_cli.methods.base import ConnectionMethod


class MixLNMethod(ConnectionMethod):
    """`fraction` of the blocks, rounded, are Post-LN."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.25
