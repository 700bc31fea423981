r"""Identity-HC: mHC without mixing, H_res = I (compared in public by Marin, 2026; iHC, arXiv 2607.28611).

$$x' = x + H_{post}\,F(N(H_{pre}\,x))$$

x are the n streams of mHC, with H_pre and H_post of mHC.
Deviations: as mHC. Only digests of the papers were available. A test compares outputs and gradients, with `read_out:
learned`, with `hy_v4` of transformers. What that does otherwise: it adds 1e-6 to H_pre and H_post, which the test sets
to 0, and starts with b_pre = -log(n - 1), the mean of the streams, in the read-out too, and with a random phi.
"""

from typing import ClassVar

from comt_cli.methods.mhc import MHC


class IdentityHC(MHC):
    """`n` streams; `start` and `read_out` as in mHC."""

    fixes: ClassVar = {"mixing": "identity"}
