r"""mHC-lite: mHC with exactly doubly stochastic matrices, weighted means of all permutations (2026, arXiv 2601.05732).

$$H_{res} = \sum_{k=1}^{n!} \mathrm{softmax}(\alpha \hat{x} \phi + b)_k\,P_k$$

P_k are the permutation matrices. All else is mHC's. n! grows fast: 24 for 4 streams, 120 for 5.
Deviations: as mHC. `start: mhc-lite` is the start of its own code. That is not Pre-LN, since branches write more to one
stream than to the others.
"""

from typing import ClassVar

from comt_cli.methods.mhc import MHC


class MHCLite(MHC):
    """`n` streams; `start` and `read_out` as in mHC."""

    fixes: ClassVar = {"mixing": "permutations"}
