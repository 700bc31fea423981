"""The chapter's claims in its order, checked."""

from __future__ import annotations

import pandas as pd

from comt_cli.analysis.diagnose import chapter, chapter_depth
from comt_cli.analysis.diagnose.claims import claims_frame


def all_claims() -> pd.DataFrame:
    """Check every claim: rows `name, claim, chapter, ours, verdict, why` (`claims.Claim`). Takes some seconds."""
    checks = (
        chapter.arithmetic_claims,
        chapter.zero_branch_claims,
        chapter.transformer_claims,
        chapter.scaling_claims,
        chapter_depth.norm_place_claims,
        chapter_depth.flexible_block_claims,
        chapter_depth.thirty_layer_claims,
    )
    return claims_frame([claim for check in checks for claim in check()])
