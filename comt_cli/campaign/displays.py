"""Which display a command has. Apart from the displays, which share what stands below them."""

from __future__ import annotations

import os
import sys

from comt_cli.campaign.plain_display import PlainDisplay
from comt_cli.campaign.progress import Display


def make_display(is_main: bool = True) -> Display:
    """Bars on a terminal, plain lines elsewhere, silence in all processes but the main one."""
    if not is_main:
        return Display()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from comt_cli.campaign.live_display import LiveDisplay

        return LiveDisplay()
    return PlainDisplay()
