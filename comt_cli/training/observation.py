"""What gates and residual stream do during training (`train.observe_every`), from one more forward pass in evaluation
mode on always the same training samples. It reads the state of the run and changes none of it.

Shapes: B batch, T tokens (of maps H, W), D width, N values of a gate per token.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.data.tokenizer import PAD
from comt_cli.layers.convolution import ConvolutionNorm
from comt_cli.layers.gates import Gate, Site, gates_of
from comt_cli.layers.residual.base import ResidualConnection, ResidualSite, State
from comt_cli.models.base import Model
from comt_cli.models.recorded import NEAR_END, connections_of, reads_source, replaced, undisturbed, values_by_kind
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.runs.logs import OBSERVED
from comt_cli.training.devices import compute_context
from comt_cli.training.evaluation import finite
from comt_cli.training.tasks import TaskRun

ROWS = 8
"""The most rows of an observation, if micro-batches are not smaller."""


def observe(task: TaskRun[Any]) -> dict[str, float | None]:
    """The quantities of `runs.logs.OBSERVED` of a task's model, by `<quantity>.<place>`; None if one is not finite.
    Sharded models need all processes."""
    inputs = task.inputs(task.trial_batch(min(ROWS, task.rows_at_once)))
    watching, where = _Observer(task.model, task.read(inputs)), (task.settings.precision, task.world.device)
    with undisturbed(task.objective), watching.watched(), compute_context(*where):
        task.objective(*inputs)
    return watching.means()


class _Observer:
    """Collects the mean of every quantity in one pass, at every gate and residual add. Padding is left out: what is
    not `read_BT` (`TaskRun.read`), else `PAD`."""

    def __init__(self, model: Model, read_BT: Tensor | None) -> None:
        self.model: Any = model
        self.several = len(model.stacks) > 1
        self.of_source = {*reads_source(model)} if isinstance(model, EncoderDecoder) else set()
        self.source_BS: Tensor | None = None
        self.read_BT = read_BT
        self.found: dict[str, list[Tensor]] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which the model's forward pass is observed."""
        model, is_map = self.model, self.model.stream == "maps"
        gates = list(_map_gates(model) if is_map else gates_of(model))
        with contextlib.ExitStack() as stack:
            for module, site, gate in gates:
                stack.enter_context(replaced([gate], "scaled", partial(self.scaled, module, site)))
            if is_map:
                units = (unit for unit in model.blocks.modules() if isinstance(unit, ConvolutionNorm))
                stack.enter_context(replaced([*model.blocks, *units], "joined", self.joined))
            else:
                stack.enter_context(replaced(connections_of(model), "step", self.step))
                if self.read_BT is None:
                    stack.enter_context(replaced([model.embedding], "forward", self.embedded))
            if self.of_source:
                stack.enter_context(replaced([model], "source_stream", self.source_stream))
            yield

    def source_stream(self, _: nn.Module, own: Callable[..., Any], *source: Tensor) -> tuple[Tensor, Tensor]:
        x_BSD, self.source_BS = own(*source)
        return x_BSD, self.source_BS

    def embedded(self, _: nn.Module, own: Callable[..., Tensor], ids_BT: Tensor) -> Tensor:
        self.read_BT = ids_BT != PAD
        return own(ids_BT)

    def scaled(
        self, module: nn.Module, site: Site, gate: Gate, own: Callable[..., Tensor], z_TN: Tensor, u_Tr: Tensor | None
    ) -> Tensor:
        by_kind, ends = values_by_kind(gate, z_TN, u_Tr)
        for kind, values_BTN in by_kind.items():
            place = ".".join([*self._branch(site), site.name, kind])
            self._add(f"gate_mean.{place}", values_BTN.float().mean(-1), module)
            if ends is not None:
                low, high = ends
                margin = NEAR_END * (high - low)
                is_near_BTN = (values_BTN < low + margin) | (values_BTN > high - margin)
                self._add(f"gate_saturation.{place}", is_near_BTN.float().mean(-1), module)
        return own(z_TN, u_Tr)

    def step(self, connection: ResidualConnection, own: Callable[..., State], state: State, branch: Any) -> State:
        x_BTD = connection.read(state)

        def watched(*inputs: Tensor) -> Tensor:
            F_BTD: Tensor = branch(*inputs)
            self._stream(connection, connection.site, x_BTD, F_BTD)
            return F_BTD

        return own(state, watched)

    def joined(self, module: nn.Module, own: Callable[..., Tensor], skip: Tensor | None, F_BCHW: Tensor) -> Tensor:
        if skip is not None:
            self._stream(module, ResidualSite(0, part="map"), skip.movedim(1, -1), F_BCHW.movedim(1, -1))
        return own(skip, F_BCHW)

    def means(self) -> dict[str, float | None]:
        """Means over layers, in the order of `OBSERVED`."""
        order, keys = [*OBSERVED], [*self.found]
        each = [value for key in keys for value in self.found[key]]
        numbers = iter(torch.stack(each).tolist() if each else [])  # waits for the device once
        means = {key: [next(numbers) for _ in self.found[key]] for key in keys}
        return {
            key: finite(math.fsum(means[key]) / len(means[key]))
            for key in sorted(keys, key=lambda key: order.index(key.partition(".")[0]))
        }

    def _branch(self, site: Site | ResidualSite) -> list[str]:
        """Stack and branch, where several stacks have sites of one name."""
        return [site.stack, site.part] if self.several else []

    def _stream(self, module: nn.Module, site: ResidualSite, x_BTD: Tensor, F_BTD: Tensor) -> None:
        place = ".".join(self._branch(site) or [site.part])
        x_BTD, F_BTD = x_BTD.float(), F_BTD.float()
        self._add(f"stream_norm.{place}", x_BTD.norm(dim=-1), module)
        self._add(f"branch_norm.{place}", F_BTD.norm(dim=-1), module)
        self._add(f"branch_cosine.{place}", F.cosine_similarity(x_BTD, F_BTD, dim=-1), module)

    def _add(self, key: str, values_BT: Tensor, module: nn.Module) -> None:
        """Add the mean over the tokens that `module` reads."""
        mask_BT = self.source_BS if module in self.of_source else self.read_BT
        if mask_BT is not None and values_BT.shape == mask_BT.shape:
            mean = torch.where(mask_BT, values_BT, 0).sum() / mask_BT.sum()
        else:
            mean = values_BT.mean()
        self.found.setdefault(key, []).append(mean)


def _map_gates(model: Any) -> Iterator[tuple[nn.Module, Site, Gate]]:
    """Every gate of an image classifier, as `gates_of`."""
    for number, block in enumerate(model.blocks):
        for name, part in {**block.convolutions, **block.norms}.items():
            if isinstance(gate := getattr(part, "gate", None), Gate):
                yield part, Site(name, "blocks", number, len(model.blocks), 0, 0), gate
