r"""Identity-HC: mHC without mixing, H_res = I (compared in public by Marin, 2026; iHC, arXiv 2607.28611).

$$x' = x + H_{post}\,F(N(H_{pre}\,x))$$

x are the n streams of mHC, with H_pre and H_post of mHC.
Deviations: as mHC. Only digests of the papers were available.
"""

from typing import ClassVar

from comt_cli.methods.mhc import MHC


class IdentityHC(MHC):
    """`n` streams; `start`: where b and phi begin."""

    fixes: ClassVar = {"mixing": "identity"}
