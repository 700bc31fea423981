"""Cost of a model, and all that it depends on."""

from __future__ import annotations

import json
from dataclasses import dataclass

from comt_cli.runs.plan import RunSpec


@dataclass(frozen=True)
class Cost:
    """Parameters are counts; FLOPs are of matrix products (2 per multiply-add, attention counted in full, as usual).

    A row is a sample: a sequence of tokens, or an image. For the backward pass `kept_per_row` numbers are kept for
    every row, and `kept_always` however many rows there are: a gated projection keeps its weights joined with its
    gates'. `unused` is what is wrong where the method has a parameter that would never be trained.
    """

    parameters: int
    plain_parameters: int
    flops_per_row: int
    kept_per_row: int
    kept_always: int
    unused: str = ""

    @property
    def extra_parameters(self) -> int:
        """Number of parameters that the method adds to the plain model of the same size; negative where it saves."""
        return self.parameters - self.plain_parameters

    @property
    def extra_parameters_percent(self) -> float:
        """`extra_parameters` in per cent of the plain model's."""
        return 100 * self.extra_parameters / self.plain_parameters


@dataclass(frozen=True)
class Network:
    """All that a cost depends on: runs that differ only in seed, or in most of the training, share one.

    Attributes:
        model, dimensions, method: the model's settings, what the data gives the model, and the method, as JSON.
        plain: the method against whose model extra parameters are counted.
        recomputes: whether blocks are computed again for the backward pass.
    """

    model: str
    dimensions: str
    method: str
    plain: str
    recomputes: bool = False


def network_of(spec: RunSpec) -> Network:
    """The network that a run trains."""
    settings, task = spec.settings, spec.task
    dimensions, method = (json.dumps(each, sort_keys=True) for each in (task.dimensions(settings), spec.method))
    return Network(settings.model.model_dump_json(), dimensions, method, task.plain_method, settings.train.recomputes)
