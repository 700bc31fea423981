"""The chapter's claims on pre- and post-norm, its flexible block, and networks of 30 layers with and without skips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.analysis.diagnose.chapter import SEED
from comt_cli.analysis.diagnose.claims import Claim, Verdict, kind, printed_claim, same_digits
from comt_cli.analysis.diagnose.measure import PLAIN, gradient_by_loss, loss_of, plain
from comt_cli.analysis.diagnose.networks import GELU_MLP, Setup
from comt_cli.methods.base import Wiring, residual_connection

DEPTHS = tuple(range(5, 51, 5))
_FLAT = 10.0
"""A gradient that changes less than so many times from 5 to 50 layers is called stable."""
_NOISE = 1e-4
"""Below this share of what another loss gives, an fp32 gradient is rounding error."""


def norm_place_claims() -> Iterator[Claim]:
    """Pre- against post-norm: with the loss of the chapter, the sum of the outputs, and with others."""
    frame = gradient_by_loss([1, *DEPTHS], [SEED], None)
    at = frame.set_index(["connection", "precision", "loss", "depth"])["gradient_norm"]

    def g(connection: str, loss: str = "sum", depth: int = 20, precision: str = "float32") -> float:
        return float(at[connection, precision, loss, depth])

    post, pre, ended = "post-norm", "pre-norm", "pre-norm, final norm"
    by_loss_only = g(post) < _NOISE * g(post, "functional")
    its_loss = Verdict.its_loss if by_loss_only else Verdict.digits
    yield Claim(
        "post-norm-20",
        "The gradient at the input of 20 post-norm layers has vanished.",
        "0.0000",
        f"{g(post):.4f} with its loss; {g(post, 'functional'):.2f} with a random linear functional, "
        f"{g(post, 'distance'):.2f} with the squared distance to a random target",
        its_loss if same_digits(g(post), "0.0000") else Verdict.no,
        "Its loss is the sum of the outputs of a LayerNorm, and these sum to 0 (its bias) whatever goes in: the "
        f"gradient is 0 at every depth, 1 included, where it is {g(post, depth=1):.1e} in fp32 and "
        f"{g(post, depth=1, precision='float64'):.1e} in fp64 - rounding error.",
    )
    yield printed_claim(
        "pre-norm-20",
        "At the input of 20 pre-norm layers the gradient is alive.",
        ["35.7888"],
        [g(pre)],
        f"With a random linear functional {g(pre, 'functional'):.2f}, with the squared distance "
        f"{g(pre, 'distance'):.1f}.",
    )
    ratio, fair = g(pre) / g(post), g(pre, "functional") / g(post, "functional")
    yield Claim(
        "ratio-20",
        "The gradient of 20 pre-norm layers is many million times that of 20 post-norm layers.",
        "65,399,430.84",
        f"{ratio:,.0f} with its loss; {fair:.2f} with a random linear functional",
        Verdict.its_loss if by_loss_only and ratio > 1e6 else kind(ratio > 1e6),
        "It divides by rounding error: in fp64 the ratio is "
        f"{g(pre, precision='float64') / g(post, precision='float64'):.0e}. Its digits are those of one machine.",
    )
    yield Claim(
        "final-norm",
        "The place of the norms within the blocks makes the difference.",
        "35.7888 against 0.0000",
        f"{g(ended):.4f} for pre-norm with its loss behind a final norm; {g(ended, 'functional'):.2f} with a random "
        "linear functional",
        Verdict.its_loss if g(ended) < _NOISE * g(pre) else Verdict.digits,
        "Transformers with pre-norm have a norm behind the last block. With one the same loss makes the gradient of "
        "pre-norm vanish too: what decides is the last operation before the sum.",
    )
    stable = [g(pre, depth=depth) for depth in DEPTHS]
    yield Claim(
        "pre-norm-depth",
        "Pre-norm's gradient is stable from 5 to 50 layers.",
        "stable",
        f"{stable[0]:.1f} at 5, {stable[-1]:.1f} at 50",
        kind(max(stable) / min(stable) < _FLAT),
        f"It does not vanish; the greatest is {max(stable) / min(stable):.1f} times the least.",
    )
    yield _attenuation(at[post])


def _attenuation(at: pd.Series) -> Claim:
    """Whether post-norm's gradient shrinks with depth: `at` is by precision, loss and depth."""

    def path(loss: str, precision: str) -> np.ndarray:
        return np.array([float(at[precision, loss, depth]) for depth in DEPTHS])

    def shrinks(values: np.ndarray) -> bool:
        return bool(np.corrcoef(DEPTHS, np.log(values))[0, 1] < -0.8)

    with_sum, fair = path("sum", "float32"), path("functional", "float32")
    verdict = Verdict.in_kind if shrinks(fair) else Verdict.its_loss if shrinks(with_sum) else Verdict.no
    return Claim(
        "post-norm-depth",
        "Post-norm's gradient gets smaller and smaller from 5 to 50 layers.",
        "progressive attenuation",
        f"its loss: {with_sum.min():.1e} to {with_sum.max():.1e} without a trend; a random linear functional: "
        f"{fair[0]:.1f} at 5, {fair[-1]:.1f} at 50",
        verdict,
        "With its loss there is only rounding error, at every depth. With another, post-norm's gradient grows with "
        "depth about as pre-norm's does: these blocks, at their start, do not attenuate.",
    )


def flexible_block_claims() -> Iterator[Claim]:
    """One block of the chapter's flexible kind, of width 256, with a norm before, behind, or with ReZero's factor."""
    setup = replace(GELU_MLP, leading=(4, 16), width=256)
    outputs: dict[str, tuple[Tensor, Tensor]] = {}
    for name in ("pre-norm", "post-norm", "rezero"):
        network, x, _ = setup.build(Wiring(residual_connection(name)), 1, SEED)
        with torch.no_grad():
            outputs[name] = x, network.streams(x)[-1]
    unseeded = "Weights and input were drawn without a seed, and the input's shape is not printed."
    x, y = outputs["pre-norm"]
    yield printed_claim(
        "flexible-pre",
        "A pre-norm block lets the standard deviation drift: from 1.0020 to 1.0227.",
        ["1.0020", "1.0227"],
        [x.std().item(), y.std().item()],
        f"{unseeded} The branch of width 256 adds a variance of {(y - x).var().item():.3f}.",
        in_kind=1.01 < (y.std() / x.std()).item() < 1.04,
    )
    x, y = outputs["post-norm"]
    yield printed_claim(
        "flexible-post",
        "A post-norm block puts out mean 0 and standard deviation 1.",
        ["0.0000", "1.0000"],
        [abs(y.mean().item()), y.std().item()],
        "LayerNorm does that to every token.",
    )
    x, y = outputs["rezero"]
    equal = torch.equal(x, y)
    yield Claim(
        "flexible-rezero",
        "A ReZero block's output has the very statistics of its input.",
        "1.0020 = 1.0020",
        f"{x.std().item():.4f} = {y.std().item():.4f}, {'equal to the last bit' if equal else 'not equal'}",
        Verdict.digits if equal else Verdict.no,
        f"{unseeded} The block is the identity.",
    )


def thirty_layer_claims() -> Iterator[Claim]:
    """30 flexible blocks with pre-norm against 30 without skip paths, and how the difference grows with depth."""
    setup = replace(GELU_MLP, leading=(4, 32))
    wirings = {"residual": Wiring(residual_connection("pre-norm")), **plain()}
    thirty = _as_printed(setup, wirings)
    said = {
        PLAIN: ("22.9232", "63.5118", "-0.0082", "0.1789"),
        "residual": ("189.8797", "202.0742", "0.0353", "1.4831"),
    }
    for name, printed in said.items():
        yield printed_claim(
            f"thirty-{name}",
            f"30 {'layers without skip paths' if name == PLAIN else 'residual layers'}: output norm, gradient norm, "
            "mean and standard deviation.",
            printed,
            thirty[name],
            "Drawn with its seed in its order. In fp32 the last digit depends on the order in which a machine sums.",
        )
    ratios: dict[str, dict[int, float]] = {"functional": {}, "sum": {}}
    alike = {}
    for depth in (10, 30, 50, 100):
        norms = {}
        for name, wiring in wirings.items():
            network, x, random = setup.build(wiring, depth, SEED)
            y = network.streams(x.requires_grad_())[-1]
            for loss in ratios:
                (gradient,) = torch.autograd.grad(loss_of(loss, y, random), x, retain_graph=True)
                norms[name, loss] = gradient.norm().item()
            alike[name, depth] = _alike(y.detach())
        for loss, by_depth in ratios.items():
            by_depth[depth] = norms["residual", loss] / norms[PLAIN, loss]
    fair, with_sum = (", ".join(f"{ratio:.1f} at {depth}" for depth, ratio in of.items()) for of in ratios.values())
    widens = {loss: of[100] > 2 * of[10] for loss, of in ratios.items()}
    yield Claim(
        "gap-depth",
        "The gap between the two widens dramatically with depth: plain layers are nearly untrainable at 50.",
        "widens",
        f"residual / plain gradient of a random linear functional: {fair}; of its loss: {with_sum}",
        Verdict.in_kind if widens["functional"] else Verdict.its_loss if widens["sum"] else Verdict.no,
        "The norms inside its plain blocks keep their gradients alive, and these grow "
        "faster than the residual ones: the gap closes. What tells the two apart: outputs for different inputs grow "
        "alike in a plain network, mean "
        f"cosine {alike[PLAIN, 10]:.2f} at 10 and {alike[PLAIN, 50]:.2f} at 50 plain layers, against "
        f"{alike['residual', 10]:.2f} and {alike['residual', 50]:.2f} with skips.",
    )


def _as_printed(setup: Setup, wirings: Mapping[str, Wiring]) -> dict[str, list[float]]:
    """Output norm, gradient norm of the sum, mean and standard deviation of 30 layers of each.

    The chapter draws one input after the other, the residual network's first; the weights of both are the same.
    """
    found = {}
    for name, wiring in wirings.items():
        network, first, second = setup.build(wiring, 30, SEED)
        x = (second if name == PLAIN else first).requires_grad_()
        y = network.streams(x)[-1]
        (gradient,) = torch.autograd.grad(y.sum(), x)
        found[name] = [y.norm().item(), gradient.norm().item(), y.mean().item(), y.std().item()]
    return found


def _alike(y: Tensor) -> float:
    """Mean cosine between the outputs of all pairs of tokens."""
    y_TD = F.normalize(y.flatten(0, -2), dim=-1)
    return (y_TD @ y_TD.T).mean().item()


CLAIMS = norm_place_claims, flexible_block_claims, thirty_layer_claims
