"""A drawing of a block: the sites of a model, and which of them a method changes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from comt_cli.library.connect import is_addition
from comt_cli.methods.base import Method, Wiring

TOKENS = (
    ("attention", (("q_proj", "k_proj", "v_proj"), ("sdpa",), ("o_proj",))),
    ("mlp", (("gate_proj", "up_proj"), ("down_proj",))),
)
MAPS = (("branch", (("conv1",), ("norm1",), ("conv2",), ("norm2",), ("conv3",), ("norm3",))),)
BOX, GAP, ROW, MARGIN = 78, 14, 26, 12
"""Width of a box, space between boxes, height of a row, and of the margin, in pixels."""


def block(wiring: Wiring, kind: type[Method]) -> str:
    """The drawing of a method's block."""
    parts = TOKENS if "tokens" in kind.streams else MAPS
    lines = max(len(column) for _, columns in parts for column in columns)
    height = 2 * MARGIN + lines * ROW + 34
    x, drawn = MARGIN, []
    for part, columns in parts:
        start = x
        if "tokens" in kind.streams:
            drawn += box(x, middle(1, lines), "norm", wiring.norms.get("*") is not None)
            x += BOX + GAP
        for column in columns:
            for i, site in enumerate(column):
                changed = site in wiring.gates or site in wiring.norms
                drawn += box(x, middle(len(column), lines) + i * ROW, site, changed)
            x += BOX + GAP
        if part in wiring.gates:  # a gate on the whole branch
            drawn += box(x, middle(1, lines), f"{part} gate", changed=True)
            x += BOX + GAP
        drawn += addition(start, x, height, is_addition(wiring))
        x += 2 * ROW
    said = caption(wiring)
    return (
        f'<svg class="block" role="img" aria-label="{escape(said)}" viewBox="0 0 {x} {height}" '
        f'width="{x}" height="{height}" xmlns="http://www.w3.org/2000/svg">{"".join(drawn)}</svg>\n\n<small>{escape(said)}</small>'
    )


def middle(count: int, lines: int) -> float:
    """The top of the first of `count` boxes in a column of `lines`."""
    return MARGIN + (lines - count) * ROW / 2


def box(x: float, y: float, name: str, changed: bool) -> Iterator[str]:
    """A site; filled where the method changes it."""
    yield f'<rect class="{"changed" if changed else "site"}" x="{x}" y="{y}" width="{BOX}" height="{ROW - 6}" rx="4"/>'
    yield f'<text x="{x + BOX / 2}" y="{y + 14}" class="{"on" if changed else "off"}">{escape(name)}</text>'


def addition(start: float, x: float, height: float, plain: bool) -> Iterator[str]:
    """The skip path below the sites of a branch, and the addition behind them; filled where it is no plain sum."""
    bottom, kind = height - MARGIN - 6, "site" if plain else "changed"
    yield f'<path class="skip" d="M{start - 8},{bottom - 24} V{bottom} H{x + 9} V{bottom - 16}"/>'
    yield f'<circle class="{kind}" cx="{x + 9}" cy="{bottom - 27}" r="10"/>'
    yield f'<text x="{x + 9}" y="{bottom - 22}" class="{"off" if plain else "on"}">+</text>'


def caption(wiring: Wiring) -> str:
    """The drawing in words."""
    changed = sorted({*wiring.gates, *wiring.norms} - {"*"})
    said = [f"on {', '.join(changed)}"] if changed else []
    said += ["every norm"] * ("*" in wiring.norms) + ["the sums"] * (not is_addition(wiring))
    said += ["what follows the embedding"] * (wiring.entry is not None)
    said += ["keys and values"] * (wiring.shared_values is not None) + ["widths"] * (wiring.widening is not None)
    return f"Changed: {'; '.join(said)}" if said else "Nothing is changed: the plain block"
