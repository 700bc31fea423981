"""Scaled initialisation: Pre-LN whose output projections start smaller, by 1 / sqrt(2 L).

Radford et al. 2019 (GPT-2), section 2.3; `scale_pre` in the scripts behind CoMT's table.
Deviations: in language models RMSNorm for LayerNorm.
"""

from __future__ import annotations

from typing import ClassVar

from comt_cli.methods.base import ConnectionMethod


class ScaledInitMethod(ConnectionMethod):
    """No options: the connection has none."""

    name: ClassVar[str] = "scaled-init"
    connection: ClassVar = "scaled-init"
