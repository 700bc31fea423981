"""Draw a block as SVG: its sites, norms and residual adds, with those marked that a method changes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import torch
from torch import nn

from comt_cli.layers.gates import Site
from comt_cli.layers.residual.base import ResidualSite, State
from comt_cli.methods.base import Method, Wiring
from comt_cli.tasks.base import PROJECTIONS

TOKENS = {
    "attention": (("q_proj", "k_proj", "v_proj"), ("sdpa",), ("o_proj",)),
    "mlp": (("gate_proj", "up_proj"), ("down_proj",)),
}
MAPS = {"map": (("conv1",), ("norm1",), ("conv2",), ("norm2",), ("conv3",), ("norm3",))}
BOX, GAP, ROW, MARGIN = 62, 12, 26, 14
"""Width of a box, space between boxes, height of a row, and width of the margin, in pixels."""
BLOCKS, WIDTH = 4, 4
"""Size of the stack that shows how the adds work."""


class Add(NamedTuple):
    """A residual add: whether norms are before the branch, after it and after the sum; whether the sum, the norm
    before the branch and its input are Pre-LN's; and the label of the skip path."""

    before: bool
    after_branch: bool
    after_sum: bool
    plain_sum: bool
    plain_norm: bool
    plain_input: bool
    label: str


def adds(wiring: Wiring, parts: Sequence[str]) -> list[Add]:
    """Run every residual add of a stack, and report what it does. Its parameters are small and unequal, so that
    weights show which the initialisation hides."""
    shape = (1, 2, 1, WIDTH) if "map" in parts else (1, 2, WIDTH)
    state, made, found = State(torch.linspace(-1, 1, 2 * WIDTH).view(shape)), [], []
    for index in range(BLOCKS * len(parts)):
        layer, at = divmod(index, len(parts))
        place = {"index": index, "count": BLOCKS * len(parts), "layer": layer, "layers": BLOCKS, "part": parts[at]}
        site = ResidualSite(WIDTH, **place, norm=lambda: nn.RMSNorm(WIDTH), before=made[index - at :])
        made.append(wiring.residual(site))
        with torch.no_grad():
            for tensor in (*made[-1].parameters(), *made[-1].buffers()):
                tensor.copy_(torch.linspace(0.05, 0.15, tensor.numel()).view_as(tensor))
            state, add = step(made[-1], state)
        found.append(add)
    return found


def step(connection: Any, state: State) -> tuple[State, Add]:
    """Do one add. Its norms are found by their calls, as pairs of input and output."""
    calls: list[tuple[Any, Any]] = []
    branches = []

    def branch(*given: torch.Tensor) -> torch.Tensor:
        branches.append((len(calls), given[0], torch.sin(given[0]) + 1))
        return branches[0][2]

    for name, module in connection.named_modules():
        if name.endswith("norm"):
            module.register_forward_hook(lambda _, given, made: calls.append((given[0], made)))
    x, new = state.stream, connection.step(state, branch)
    (at, read, F), several = branches[0], connection.side_by_side(new)
    sums = [x + F, *(x + made for given, made in calls[at:] if given is F)]
    results = [new.x, *(given for given, made in calls[at:] if made is new.x)]
    return new, Add(
        before=at > 0,
        after_branch=any(given is F for given, _ in calls[at:]),
        after_sum=any(made is new.x for _, made in calls[at:]),
        plain_sum=several is None and any(torch.allclose(a, b) for a in sums for b in results),
        plain_norm=at == 0 or any(made is read for _, made in calls[:at]),
        plain_input=torch.allclose(calls[at - 1][0] if at else read, x),
        label=f"{several.shape[-2]} streams" if several is not None else "with earlier layers" * bool(new.sources),
    )


def block(name: str, wiring: Wiring, kind: type[Method]) -> str:
    """The figure of a method: its last block, and the first where norms are elsewhere there."""
    parts = TOKENS if "tokens" in kind.streams else MAPS
    found = adds(wiring, tuple(parts))
    drawn = {"": found[-len(parts) :]}
    if [add[:3] for add in found[: len(parts)]] != [add[:3] for add in drawn[""]]:
        drawn = {"First block": found[: len(parts)], "Last block": drawn[""]}
    pairs = [(where, *each) for where, block in drawn.items() for each in zip(parts, block, strict=True)]
    svgs = [svg(name, where, part, parts[part], wiring, add) for where, part, add in pairs]
    text = escape(caption(wiring, [add for *_, add in pairs], is_map=parts is MAPS))
    return f'<figure class="block">\n<div>{"".join(svgs)}</div>\n<figcaption>{text}</figcaption>\n</figure>'


def svg(name: str, where: str, part: str, sites: Sequence[Sequence[str]], wiring: Wiring, add: Add) -> str:
    """One branch of a method's block, with its skip path and its sum."""
    marks, norm = marked(wiring), "changed" if "*" in wiring.norms else "site"
    columns = [[(site, marks.get(site, "site")) for site in column] for column in sites]
    if add.before and part != "map":
        columns.insert(0, [("norm", norm if add.plain_norm else "changed")])
    columns += [[("gate", "changed")]] * (part in wiring.gates) + [[("norm", norm)]] * add.after_branch
    height = MARGIN + ROW * max(len(column) for column in columns)
    middle, plus = (height + MARGIN) / 2, 2 * MARGIN + len(columns) * (BOX + GAP) + 8
    width = plus + 10 + (GAP + BOX) * add.after_sum + 2 * MARGIN
    how = "site" if add.plain_sum else "changed"
    drawn = [
        f'<svg role="img" width="{width}" height="{height + 32}" viewBox="0 0 {width} {height + 32}" ',
        f'xmlns="http://www.w3.org/2000/svg"><title>{name}: {where} {part}</title>',
        f'<path d="M2,{middle} H{2 * MARGIN - GAP / 2} M{plus - 8 - GAP / 2},{middle} H{width - 2}"/>',
        f'<path d="M{MARGIN},{middle} V{height + 14} H{plus} V{middle}"/>',
        f'<circle class="{how}" cx="{plus}" cy="{middle}" r="10"/>',
        f'<text x="{plus}" y="{middle + 4}" class="{how}">+</text>',
        f'<text x="{(MARGIN + plus) / 2}" y="{height + 27}">{", ".join(filter(None, (where, add.label)))}</text>',
    ]
    drawn += [f'<circle class="changed" cx="{MARGIN}" cy="{middle}" r="5"/>'] * (not add.plain_input)
    for i, column in enumerate([*columns, *[[("norm", norm)]] * add.after_sum]):
        x = 2 * MARGIN + i * (BOX + GAP) + (GAP + 18) * (i == len(columns))
        for j, (site, how) in enumerate(column):
            y = middle + (j - len(column) / 2) * ROW + 3
            drawn.append(f'<path d="M{x - GAP / 2},{middle} V{y + ROW / 2 - 3} H{x + BOX + GAP / 2} V{middle}"/>')
            drawn.append(f'<rect class="{how}" x="{x}" y="{y}" width="{BOX}" height="{ROW - 6}" rx="4"/>')
            drawn.append(f'<text x="{x + BOX / 2}" y="{y + 14}" class="{how}">{site}</text>')
    return "".join([*drawn, "</svg>"])


def marked(wiring: Wiring) -> dict[str, str]:
    """The sites that a method changes, and those that it only gives another start."""
    shared = wiring.shared_values and wiring.shared_values(1, 2)
    changed = {*wiring.gates, *wiring.norms, *("gate_proj", "up_proj", "down_proj") * bool(wiring.widening)}
    own_values = bool(shared or wiring.value_embedding)
    changed |= {*("v_proj",) * own_values, *("k_proj",) * getattr(shared, "mixes_keys", False)}
    changed |= {*("q_proj", "k_proj", "v_proj") * norms_heads(wiring), *("sdpa",) * bool(wiring.exclude)}
    return {**dict.fromkeys(started(wiring), "started"), **dict.fromkeys(changed, "changed")}


def norms_heads(wiring: Wiring) -> bool:
    """Whether attention normalises queries, keys and values."""
    return wiring.residual(ResidualSite(WIDTH, part="attention", norm=nn.Identity)).norms_heads


def started(wiring: Wiring) -> list[str]:
    """Projections whose initial standard deviation the residual connection sets."""
    connection = wiring.residual(ResidualSite(WIDTH, count=2 * BLOCKS, layers=BLOCKS, norm=nn.Identity))
    return [name for name in PROJECTIONS if connection.initial_std(Site(name, "", 0, BLOCKS, WIDTH, WIDTH), 1.0) != 1]


def caption(wiring: Wiring, drawn: Sequence[Add], *, is_map: bool) -> str:
    """The drawing as text."""
    gates = "all projections" if {*PROJECTIONS} <= {*wiring.gates} else ", ".join(wiring.gates)
    parts = {
        f"gates on {gates}{' (whole branches)' * ('attention' in wiring.gates)}": wiring.gates,
        "every norm": "*" in wiring.norms,
        "norms of each head's queries, keys and values": norms_heads(wiring),
        "the residual adds": not all(add.plain_sum for add in drawn),
        "the input of branches": not all(add.plain_input for add in drawn),
        "the scale of norms": not all(add.plain_norm for add in drawn),
        "the place of norms": not is_map and any(add[:3] != (True, False, False) for add in drawn),
        f"the initialisation of {', '.join(started(wiring))}": started(wiring),
        "the embedding's output": wiring.entry,
        "keys and values" if "k_proj" in marked(wiring) else "values": wiring.shared_values or wiring.value_embedding,
        "the output of attention": wiring.exclude,
        "the width of the feed-forward network": wiring.widening,
    }
    changed = [text for text, is_changed in parts.items() if is_changed]
    return f"Changed: {'; '.join(changed)}." if changed else "The plain block: nothing is changed."
