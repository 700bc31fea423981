"""The printed claims of a chapter (Brenndoerfer, "Residual Connections: The Gradient Highways Enabling Deep
Transformers", 2025), each with our number and a verdict. `chapter.csv` has the texts, with our numbers in braces;
`ours` is empty there if the chapter prints a list of numbers that ours should equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.files import read_csv
from comt_cli.lab import networks
from comt_cli.lab.networks import PLAIN, Setup, Trace, trace
from comt_cli.methods.base import Wiring, residual_connection

SEED = 42  # the chapter's seed
PRE_NORM, POST_NORM, REZERO = (Wiring(residual_connection(name)) for name in ("pre-norm", "post-norm", "rezero"))
DEPTHS = tuple(range(5, 51, 5))
_FLAT = 10.0  # a gradient that changes by less than this factor from 5 to 50 layers is called stable
_NOISE = 1e-4  # below this share of another loss's gradient, an fp32 gradient is rounding error
_ROUNDING = 1e-5  # the effect of the order of fp32 sums on numbers that the chapter prints to more digits


DIGITS, IN_KIND, NO = "reproduces", "reproduces in kind", "does not reproduce"
ITS_LOSS = "reproduces only with its loss"
Found = tuple[str, str | bool, dict[str, Any]]
"""The name of a claim, the verdict or whether it reproduces in kind, and numbers for its row, a list as `ours`."""


def claims_frame() -> pd.DataFrame:
    """Every claim in the chapter's order: its text, the chapter's number and ours, the verdict and its reason."""
    chapter = {row["name"]: row for row in read_csv(Path(__file__).with_name("chapter.csv"))}
    for name, holds, numbers in (found for check in CHECKS for found in check()):
        row = chapter[name]
        verdict = holds if isinstance(holds, str) else IN_KIND if holds else NO
        if not row["ours"]:
            pairs = list(zip(numbers["ours"], row["chapter"].split("; "), strict=True))
            row["ours"] = "; ".join(f"{number:.{_decimals(text)}f}" for number, text in pairs)
            verdict = DIGITS if all(_same_digits(*pair) for pair in pairs) else verdict
        row |= {"verdict": verdict, **{key: row[key].format(**numbers) for key in ("ours", "why")}}
    return pd.DataFrame(list(chapter.values()))[["name", "claim", "chapter", "ours", "verdict", "why"]]


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])


def _same_digits(number: float, printed: str) -> bool:
    """Whether `number` equals the printed one after rounding, or up to the rounding of fp32 sums."""
    value = float(printed)
    return f"{number:.{_decimals(printed)}f}" == printed or abs(number - value) <= _ROUNDING * abs(value)


def _exactly(holds: bool) -> str:
    return DIGITS if holds else NO


def _seen(setup: Setup, wiring: Wiring, depth: int = 1, seed: int = SEED) -> Trace:
    return trace(*setup.build(wiring, depth, seed))


def arithmetic() -> Iterator[Found]:
    """Products of factors near 1, and the chapter's model of a residual network's gradient."""
    random = np.random.RandomState(SEED)  # the legacy stream, the source of the chapter's numbers
    ends = {scale: float(np.prod(scale * (1 + 0.1 * random.randn(50)))) for scale in (1.05, 1.0, 0.95)}
    for scale, factor in ((1.05, 10.0), (0.95, 0.1)):
        end, plain = ends[scale], scale**50
        typical = {"plain": plain, "median": plain * math.exp(-50 * 0.1**2 / 2)}
        is_near = max(end / factor, factor / end) < 1.5
        yield f"product-{scale}", is_near, {"end": end, "flat": ends[1.0], "scale": scale, **typical}
    yield "power-0.9", False, {"ours": [0.9**50]}
    yield "power-0.5", False, {"ours": [0.5**20]}
    yield "decomposition", False, {"ours": [1 + 0.5 ** (layer + 1) for layer in (0, 4, 8, 12, 16)]}
    plus, minus = 1.5**20, 0.5**20  # of 20 layers x + 0.5 x, and x - 0.5 x
    yield "floor", _exactly(min(plus, minus) >= 1), {"plus": plus, "minus": minus}


def one_block() -> Iterator[Found]:
    """Blocks whose branch ends in zeros, and a block of the chapter's flexible kind, of width 256, with a norm before
    or after, or with ReZero's factor; the connections are ours, the branches the chapter's."""
    for name, depth in (("zero-branch", 1), ("zero-branch-50", 50)):
        x, *_, residual = _seen(networks.ZERO_BRANCH, PRE_NORM, depth).streams
        plain = _seen(networks.ZERO_BRANCH, PLAIN["plain"], depth).output
        is_kept, is_lost = torch.equal(x, residual), not plain.any()
        kept, lost = "input, to the last bit" if is_kept else "not the input", "nothing" if is_lost else "something"
        ours = [h.norm().item() for h in (x, residual, plain)]
        verdict = is_kept and is_lost if depth == 1 else _exactly(is_kept and is_lost)
        yield name, verdict, {"ours": ours, "kept": kept, "lost": lost}
    is_kept = torch.equal(*_seen(networks.RELU_MLP, REZERO).streams)
    yield "rezero", _exactly(is_kept), {"equal": "equal" if is_kept else "not equal"}
    setup = replace(networks.GELU_MLP, leading=(4, 16), width=256)
    x, y = _seen(setup, PRE_NORM).streams
    drifts = 1.01 < (y.std() / x.std()).item() < 1.04
    yield "flexible-pre", drifts, {"ours": [x.std().item(), y.std().item()], "variance": (y - x).var().item()}
    y = _seen(setup, POST_NORM).output
    yield "flexible-post", False, {"ours": [abs(y.mean().item()), y.std().item()]}
    x, y = _seen(setup, REZERO).streams
    equal = "equal to the last bit" if torch.equal(x, y) else "not equal"
    told = {"before": x.std().item(), "after": y.std().item(), "equal": equal}
    yield "flexible-rezero", _exactly(torch.equal(x, y)), told
    with torch.device("meta"):  # the size of a Transformer block of width 512, counted on a real one
        parts = [nn.MultiheadAttention(512, 8), nn.Linear(512, 2048), nn.Linear(2048, 512)]
        parts += [nn.LayerNorm(512), nn.LayerNorm(512)]
    count = sum(parameter.numel() for part in parts for parameter in part.parameters())
    yield "block-size", _exactly(count == 3_152_384), {"count": count}
    yield "block-size-text", count > 6e6, {"millions": count / 1e6}


def scaling() -> Iterator[Found]:
    """The norm of the stream along 30 and more blocks x + s F(x) without norms."""

    def norms(name: str, depth: int, seed: int = SEED) -> np.ndarray:
        return np.array(_seen(networks.RELU_MLP, networks.scalings(depth)[name], depth, seed).activations)

    def fit(values: np.ndarray) -> float:  # the share of their variance that a straight line explains
        return float(np.corrcoef(np.arange(len(values)), values)[0, 1] ** 2)

    paths = {name: norms(name, 30) for name in ("1", "0.5", "0.1")}
    one, half, tenth = (path[-1] / path[0] for path in paths.values())
    holds = (one > 2, 1 < half < 1 + (one - 1) / 2, abs(tenth - 1) < 0.05)
    for (name, path), is_so in zip(paths.items(), holds, strict=True):
        yield f"scale-{name}", is_so, {"start": path[0], "end": path[-1], "growth": path[-1] / path[0]}
    long = norms("1", 200)
    grown = {f"at{depth}": long[depth] / long[0] for depth in (50, 100, 200)}
    fits = {"linear": fit(long), "geometric": fit(np.log(long)), "short": fit(paths["1"])}
    rate = (long[200] / long[100]) ** (1 / 100) - 1
    yield "scale-1-linear", fits["linear"] > fits["geometric"], {"rate": rate, **grown, **fits}
    ends = {}
    for depth in (10, 30, 100, 300):
        seen = [norms("1/sqrt(L)", depth, seed) for seed in range(5)]
        ends[f"at{depth}"] = float(np.mean([path[-1] / path[0] for path in seen]))
    yield "scale-depth", max(ends.values()) < 1.5, ends


def norm_place() -> Iterator[Found]:
    """Pre- against post-norm: with the loss of the chapter, the sum of the outputs, and with others."""
    index = ["connection", "precision", "loss", "depth"]
    at = networks.gradient_by_loss([1, *DEPTHS], [SEED]).set_index(index)["gradient_norm"].sort_index()
    names = ("post-norm", "pre-norm", "pre-norm, final norm")
    post, pre, ended = ({loss: at[name, "float32", loss, 20] for loss in networks.LOSSES} for name in names)
    is_by_loss = post["sum"] < _NOISE * post["functional"]
    verdict = ITS_LOSS if is_by_loss else DIGITS
    first = {f"fp{bits}": at["post-norm", f"float{bits}", "sum", 1] for bits in (32, 64)}
    yield "post-norm-20", verdict if _same_digits(post["sum"], "0.0000") else False, {**post, **first}
    yield "pre-norm-20", False, {"ours": [pre["sum"]], **pre}
    ratio = {loss: pre[loss] / post[loss] for loss in networks.LOSSES}
    in_fp64 = at["pre-norm", "float64", "sum", 20] / at["post-norm", "float64", "sum", 20]
    is_huge = ratio["sum"] > 1e6
    yield "ratio-20", ITS_LOSS if is_by_loss and is_huge else is_huge, {"fp64": in_fp64, **ratio}
    yield "final-norm", ITS_LOSS if ended["sum"] < _NOISE * pre["sum"] else DIGITS, ended
    along = at["pre-norm", "float32", "sum"][[*DEPTHS]]
    times = along.max() / along.min()
    yield "pre-norm-depth", times < _FLAT, {"at5": along[5], "at50": along[50], "times": times}
    by_loss = {loss: at["post-norm", "float32", loss][[*DEPTHS]] for loss in ("functional", "sum")}
    shrinks = {loss: np.corrcoef(DEPTHS, np.log(path))[0, 1] < -0.8 for loss, path in by_loss.items()}
    fair, with_sum = by_loss.values()
    told = {"at5": fair[5], "at50": fair[50], "least": with_sum.min(), "most": with_sum.max()}
    yield "post-norm-depth", bool(shrinks["functional"]) or (ITS_LOSS if shrinks["sum"] else False), told


def thirty_layers() -> Iterator[Found]:
    """30 flexible blocks with pre-norm against 30 without skip paths, and how the difference grows with depth."""

    def alike(y: Tensor) -> float:  # mean cosine between the outputs of all pairs of tokens
        y_TD = F.normalize(y.flatten(0, -2), dim=-1)
        return (y_TD @ y_TD.T).mean().item()

    setup = replace(networks.GELU_MLP, leading=(4, 32))
    wirings = {"residual": PRE_NORM, **PLAIN}
    for name, wiring in wirings.items():
        network, first, second = setup.build(wiring, 30, SEED)
        # The chapter draws one input after the other, first the residual network's; both have the same weights.
        seen = trace(network, second if name == "plain" else first, first, "sum")
        y = seen.output
        yield f"thirty-{name}", False, {"ours": [y.norm().item(), seen.gradients[0], y.mean().item(), y.std().item()]}
    told, widens = dict[str, Any](), dict[str, bool]()
    for loss in ("functional", "sum"):
        ratios = {}
        for depth in (10, 30, 50, 100):
            residual, plain = (trace(*setup.build(wiring, depth, SEED), loss) for wiring in wirings.values())
            ratios[depth] = residual.gradients[0] / plain.gradients[0]
            told |= {f"residual{depth}": alike(residual.output), f"plain{depth}": alike(plain.output)}
        told[loss] = ", ".join(f"{ratio:.1f} at {depth}" for depth, ratio in ratios.items())
        widens[loss] = ratios[100] > 2 * ratios[10]
    yield "gap-depth", widens["functional"] or (ITS_LOSS if widens["sum"] else False), told


CHECKS = arithmetic, one_block, scaling, norm_place, thirty_layers
