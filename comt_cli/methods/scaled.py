"""Scaled: the branch is multiplied by a number before it is added.

$$y = x + s F(x)$$

s = 0.1 is Szegedy et al. 2017 (Inception-v4, section 3.3: 0.1 to 0.3), the default; `depth` is
1 / sqrt(L) with L blocks; `learned` is one number a connection, 1 at the start, where ReZero's begins at 0.
Deviations: in a language model F is a Pre-LN branch, and L counts blocks, of two additions each; the branches of
Inception-v4 are its own, here they are the model's. A learned s is stored as itself: with weights in bf16 alone
(`bf16-pure`) it moves away from 1 in steps of 2^-8 and more, or not at all.
"""

from typing import Annotated, Literal

from pydantic import Field

from comt_cli.methods.base import ConnectionMethod


class ScaledMethod(ConnectionMethod):
    """`scale`: the number s, or what it follows from."""

    streams = ("tokens", "maps")
    scale: Annotated[float, Field(gt=0)] | Literal["depth", "learned"] = 0.1
