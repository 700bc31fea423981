"""Scaled branch: the branch is multiplied by a number before it is added (Szegedy et al. 2017, section 3.3).

$$y = x + s F(x)$$

s = 0.1, the default, is from Inception-v4, which recommends 0.1 to 0.3. `depth` is 1 / sqrt(L) with L blocks. `learned`
is one number per connection that starts at 1, where ReZero starts at 0.
Deviations: In a language model F is a Pre-LN branch, and L counts blocks of two adds each. The branches are the
model's, not Inception's. A test compares outputs and gradients with `granite` of transformers, whose
`residual_multiplier` is s. A learned s is stored directly: with bf16 weights (`bf16-pure`) it leaves 1 in steps of 2^-8
or more, or not at all.
"""

from typing import Annotated, Literal

from pydantic import Field

from comt_cli.methods.base import ConnectionMethod


class ScaledMethod(ConnectionMethod):
    """`scale`: the number s, or what it follows from."""

    streams = ("tokens", "maps")
    scale: Annotated[float, Field(gt=0)] | Literal["depth", "learned"] = 0.1
