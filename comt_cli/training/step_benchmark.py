"""How long one training step takes, each variant as a ratio to named alternatives measured in the same run.

All variants live in one process and take turns, round after round, so that a machine that slows down slows all of them;
the ratio of a round is formed within the round, and its median over the rounds is what counts.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comt_cli.data import IGNORE
from comt_cli.errors import UserError
from comt_cli.models.build import empty_model, materialise, wiring_of
from comt_cli.recipe.settings import ModelSettings, Precision, TrainSettings
from comt_cli.training.devices import device_name, prepare_process, synchronise
from comt_cli.training.objective import SummedLoss
from comt_cli.training.optimisation import make_optimizer
from comt_cli.training.precision import compute_context, parameter_dtype
from comt_cli.training.record import git_commit

Part = Callable[[], None]
"""One thing to time: a whole step, or a forward pass alone."""

VARIANTS = {
    "transformers": "LlamaForCausalLM of the transformers library, as it comes",
    "transformers-compiled": "the same under torch.compile",
    "plain": "our LLaMA, Pre-LN, no gates",
    "plain-compiled": "the same under torch.compile: what gated steps are measured against",
    "comt": "CoMT, h = 2, at all seven projections",
    "comt-compiled": "the same under torch.compile",
    "transponder": "Transponder, r = 8, at all seven projections",
    "transponder-compiled": "the same under torch.compile",
}
REFERENCE = "plain-compiled"
PEER = "transformers"
_METHODS = {"plain": "pre-ln", "comt": "comt", "transponder": "transponder"}


@dataclass(frozen=True)
class Shape:
    """What is trained: a LLaMA of these sizes on batches of `batch` x `length` tokens."""

    width: int = 256
    ffn_width: int = 688
    layers: int = 4
    heads: int = 4
    vocabulary: int = 4096
    batch: int = 16
    length: int = 128

    def __str__(self) -> str:
        sizes = f"d{self.width}-f{self.ffn_width}-l{self.layers}-h{self.heads}-v{self.vocabulary}"
        return f"{sizes}-b{self.batch}x{self.length}"

    def model(self) -> ModelSettings:
        """The model's settings."""
        return ModelSettings(
            size="tiny", width=self.width, ffn_width=self.ffn_width, layers=self.layers, heads=self.heads
        )


@dataclass(frozen=True)
class Measurement:
    """One variant. Times in milliseconds (median, and the 10th and 90th percentile); ratios are medians over rounds."""

    device: str
    shape: str
    precision: str
    variant: str
    rounds: int
    step_ms: float
    step_ms_p10: float
    step_ms_p90: float
    tokens_per_second: float
    step_ratio_to_plain_compiled: float | None
    step_ratio_to_transformers: float | None
    forward_ms: float
    forward_ratio_to_plain_compiled: float | None
    torch: str
    git_commit: str | None


def run_step_benchmark(
    shape: Shape, precision: Precision, variants: Sequence[str], device: torch.device, rounds: int
) -> Iterator[str | list[Measurement]]:
    """Measure `variants` on `device`; yields lines that say what is going on, and last the measurements."""
    prepare_process(device)
    torch._dynamo.reset()
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length), generator=torch.Generator().manual_seed(0))
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = IGNORE
    tokens, targets = tokens.to(device), targets.to(device)
    parts: dict[str, tuple[Part, Part]] = {}
    for name in variants:
        begin = time.perf_counter()
        step, forward = _variant(name, shape, precision, tokens, targets)
        for part in (step, step, forward, forward):
            part()
        synchronise(device)
        parts[name] = step, forward
        yield f"{precision} {name}: ready after {time.perf_counter() - begin:.1f} s"
    steps = {name: [0.0] * rounds for name in variants}
    forwards = {name: [0.0] * rounds for name in variants}
    for index in range(rounds):
        for name, (step, forward) in parts.items():
            steps[name][index] = _seconds(step, device)
            forwards[name][index] = _seconds(forward, device)
        yield f"{precision} round {index + 1} of {rounds}"
    yield [_measurement(name, shape, precision, device, steps, forwards) for name in variants]


def _seconds(part: Part, device: torch.device) -> float:
    start = time.perf_counter()
    part()
    synchronise(device)
    return time.perf_counter() - start


def _measurement(
    name: str,
    shape: Shape,
    precision: str,
    device: torch.device,
    steps: dict[str, list[float]],
    forwards: dict[str, list[float]],
) -> Measurement:
    times = sorted(steps[name])
    median = statistics.median(times)
    return Measurement(
        device=device_name(device),
        shape=str(shape),
        precision=precision,
        variant=name,
        rounds=len(times),
        step_ms=round(1e3 * median, 2),
        step_ms_p10=round(1e3 * times[len(times) // 10], 2),
        step_ms_p90=round(1e3 * times[-1 - len(times) // 10], 2),
        tokens_per_second=round(shape.batch * shape.length / median, 1),
        step_ratio_to_plain_compiled=_ratio(steps, name, REFERENCE),
        step_ratio_to_transformers=_ratio(steps, name, PEER),
        forward_ms=round(1e3 * statistics.median(forwards[name]), 2),
        forward_ratio_to_plain_compiled=_ratio(forwards, name, REFERENCE),
        torch=torch.__version__,
        git_commit=git_commit(),
    )


def _ratio(times: dict[str, list[float]], name: str, other: str) -> float | None:
    if other not in times:
        return None
    return round(statistics.median(a / b for a, b in zip(times[name], times[other], strict=True)), 4)


def _variant(name: str, shape: Shape, precision: Precision, tokens: Tensor, targets: Tensor) -> tuple[Part, Part]:
    base, _, suffix = name.partition("-")
    make = _transformers_loss if base == "transformers" else _our_loss
    model, loss_sum = make(base, shape, precision, tokens.device, suffix == "compiled")
    optimizer = make_optimizer(model, TrainSettings(steps=1, learning_rate=1e-4))
    count = int((targets != IGNORE).sum())

    def step() -> None:
        with compute_context(precision, tokens.device):
            loss = loss_sum(tokens, targets)
        torch.autograd.backward(loss / count)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def forward() -> None:
        with torch.no_grad(), compute_context(precision, tokens.device):
            loss_sum(tokens, targets)

    return step, forward


LossSum = Callable[[Tensor, Tensor], Tensor]


def _our_loss(
    base: str, shape: Shape, precision: Precision, device: torch.device, compiled: bool
) -> tuple[torch.nn.Module, LossSum]:
    model = empty_model(shape.model(), shape.vocabulary, wiring_of({"name": _METHODS[base]}))
    materialise(model, device, seed=0)
    model.to(parameter_dtype(precision))
    module = SummedLoss(model)
    if compiled:
        module.compile_model(keep_others=True)
    return model, module


def _transformers_loss(
    base: str, shape: Shape, precision: Precision, device: torch.device, compiled: bool
) -> tuple[torch.nn.Module, LossSum]:
    del base
    library = import_transformers()
    config = library.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.ffn_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.length,
        use_cache=False,
    )
    model = library.LlamaForCausalLM(config).to(device=device, dtype=parameter_dtype(precision))
    if compiled:
        model.compile(dynamic=False)

    def loss_sum(tokens: Tensor, targets: Tensor) -> Tensor:
        # `shift_labels` are targets that stand where they are predicted, as ours do.
        loss: Tensor = model(input_ids=tokens, labels=tokens, shift_labels=targets).loss
        return loss * (shape.batch * (shape.length - 1))  # its loss is the mean over the targets; one a row has none

    return model, loss_sum


def import_transformers() -> Any:
    """The `transformers` library, which is no dependency of this program: only benchmarks and tests compare with it.

    Raises:
        UserError: it is not installed.
    """
    if "transformers" not in sys.modules:
        # transformers imports torchvision wherever it finds it, and a torchvision built for another torch than the one
        # installed (a CPU build beside the registry's CUDA build) fails on import. LLaMA needs none.
        sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
    try:
        import transformers
    except ImportError:
        raise UserError("the comparison with transformers needs that library", "pip install transformers") from None
    return transformers
