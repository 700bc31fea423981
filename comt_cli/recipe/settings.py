"""Settings that all runs have in common: the types of keys, a section of keys, and training. The sections of each task
stand with it (`tasks/settings`), those of data with its reader. A field's type, limits and default are in its class and
nowhere else; its meaning is in `docs/site/keys`, from which the pages of `docs/recipe-keys` are written."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction as Exact
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, create_model, model_validator

from comt_cli.recipe.problems import closest, nearest

MAX_WIDTH = 2**20
MAX_FFN_WIDTH = 2**22
MAX_LAYERS = 1000
MAX_LENGTH = 2**20
MAX_VOCABULARY = 2**24
MAX_COUNT = 2**31 - 1
"""Limits for recipes and files from anywhere: hundreds of times larger than any trained model, and small enough that
element counts fit in 64 bits."""


def matching(pattern: str, allowed: str, names: Sequence[str] = ()) -> AfterValidator:
    """A validator of text that matches `pattern` or is one of `names`; else its message ends with `allowed`."""
    refused = f"is none of {', '.join(names)}, nor {allowed}" if names else allowed

    def checked(given: str) -> str:
        if given not in names and re.fullmatch(pattern, given) is None:
            close = closest(given, names)
            raise ValueError(f"{given!r} {refused}" + (f"; did you mean {close}?" if close is not None else ""))
        return given

    return AfterValidator(checked)


WholeNumber = StrictInt
Width = Annotated[WholeNumber, Field(gt=0, le=MAX_WIDTH)]
FFNWidth = Annotated[WholeNumber, Field(gt=0, le=MAX_FFN_WIDTH)]
Layers = Annotated[WholeNumber, Field(gt=0, le=MAX_LAYERS)]
Vocabulary = Annotated[WholeNumber, Field(gt=0, le=MAX_VOCABULARY)]
Length = Annotated[WholeNumber, Field(gt=0, le=MAX_LENGTH)]
Count = Annotated[WholeNumber, Field(gt=0, le=MAX_COUNT)]  # of steps, rows and images
Tokens = Annotated[WholeNumber, Field(gt=0, le=2**53)]

Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Precision = Literal["fp32", "bf16-mixed", "bf16-pure"]
Kernels = Literal["auto", "reference", "fused"]
GateInit = Literal["kaiming-uniform", "torch-linear", "normal"]
"""Initialisation of a gate's matrices; see `layers.gates.draw_gate_weight`."""


class Section(BaseModel):
    """An immutable group of keys; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    later: ClassVar[frozenset[str]] = frozenset()
    """Keys added after the first runs: part of a run's identity only if they differ from the default."""

    def stored(self, *without: str) -> dict[str, Any]:
        """The keys as in a run's identity and its `spec.json`: with defaults, without `without`, and without keys of
        `later` that have their default."""
        usual = {key for key in self.later if getattr(self, key) == type(self).model_fields[key].default}
        return self.model_dump(mode="json", exclude={*without, *usual})


class NetworkSettings(Section):
    """A network: its family, which selects the module that builds it, and one of `sizes`. A key may override the number
    of the same name."""

    sizes: ClassVar[Mapping[str, Any]] = {}

    family: str
    size: str

    @model_validator(mode="after")
    def _size_is_known(self) -> Self:
        if self.size not in self.sizes:
            raise ValueError(f"size: there is no size {self.size!r}; {nearest(self.size, self.sizes)}")
        return self

    def shape(self) -> Any:
        """The shape from which the network is built: the named size with overrides."""
        raise NotImplementedError

    def _numbers(self, keys: Iterable[str]) -> dict[str, Any]:
        """Numbers of the shape: the given ones, else those of the named size."""
        return {key: getattr(self, key) or getattr(self.sizes[self.size], key) for key in keys}


class AttentionSettings(NetworkSettings):
    """A network of blocks with attention and a feed-forward network."""

    width: Width | None = None
    ffn_width: FFNWidth | None = None
    heads: Width | None = None

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        shape = self.shape()
        if shape.width % shape.heads:
            raise ValueError(f"heads: {shape.heads} does not divide the width {shape.width}")
        return self


def _steps_or_share(given: float) -> float:
    if given < 0 or (isinstance(given, float) and not 0 < given < 1):
        raise ValueError(f"{given!r} is neither a whole number of steps (without a point) nor a share between 0 and 1")
    return given


StepsOrShare = Annotated[int | float, AfterValidator(_steps_or_share)]
"""A point in the schedule, as in recipes and `--set`: a whole number of steps, or a share of `steps` below 1."""


def steps_of(share: float, steps: int) -> int:
    """The number of steps nearest to a share of them, at least 1; halves round up. The share is the decimal as written:
    0.29 of 50 steps is 14.5 and thus 15."""
    return max(1, math.floor(Exact(str(share)) * steps + Exact(1, 2)))


class Training(Section):
    """Training settings. Steps are optimiser updates; batch sizes count rows or images over all devices. Runs store
    whole steps; in recipes the keys of `moments` may also be shares of `steps`."""

    moments: ClassVar[Mapping[str, Any]] = {"warmup_steps": StepsOrShare, "keep_every": StepsOrShare | None}
    later: ClassVar[frozenset[str]] = frozenset({"select", "deterministic", "keep_every", "observe_every"})
    of_start: ClassVar[tuple[str, ...]] = ()
    """Keys that require weights to start from; without such a start they are refused."""

    steps: Count
    batch_size: Count
    micro_batch_size: Count | None = None
    learning_rate: Annotated[float, Field(gt=0)]
    schedule: str
    warmup_steps: Annotated[WholeNumber, Field(ge=0, le=MAX_COUNT)] = 0
    min_lr_ratio: Fraction | None = None
    weight_decay: NonNegative = 0.0
    gradient_clipping: NonNegative = 0.0
    precision: Precision = "fp32"
    compile: bool = False
    kernels: Kernels = "auto"
    deterministic: bool = True
    log_every: Count = 10
    observe_every: Count | None = None
    evaluate_every: Count | None = None
    evaluation_batch_size: Count | None = None
    select: Literal["last", "best"] = "last"
    save_every: Count = 1000
    keep_every: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _normalised(cls, given: Any) -> Any:
        """Convert shares to whole steps, and store the default of a missing floor if the schedule has one."""
        if not isinstance(given, dict):
            return given
        steps = given.get("steps")
        said = {key: _in_steps(value, steps) if key in cls.moments else value for key, value in given.items()}
        if said.get("min_lr_ratio") is None:
            schedule = said.get("schedule", cls.model_fields["schedule"].default)
            said["min_lr_ratio"] = None if schedule in WITHOUT_FLOOR else 0.1
        return said

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        wrong = list(self._contradictions())
        if wrong:
            raise ValueError(*wrong)  # `validate` reports each as a problem
        return self

    def keeps(self, step: int) -> bool:
        """Whether the weights after a step are kept in the run directory, for `comt average`."""
        return self.keep_every is not None and step % self.keep_every == 0

    @property
    def averaged_steps(self) -> tuple[int, ...]:
        """The steps whose weights are averaged at the end, in rising order; () if the last weights are kept."""
        return ()

    @property
    def temporary_steps(self) -> list[int]:
        """The averaged steps whose weights are deleted when the run has ended."""
        return [step for step in self.averaged_steps if not self.keeps(step)]

    def optimizer_state(self, trained: int, matrices: int) -> int:
        """Numbers that the optimiser stores for `trained` parameters, of which `matrices` are those of
        `layers.roles.hidden_matrices`."""
        raise NotImplementedError

    @property
    def recomputes(self) -> bool:
        """Activation checkpointing: whether blocks are recomputed for the backward pass."""
        return False

    @property
    def shards(self) -> bool:
        """Whether several processes shard the parameters."""
        return False

    @property
    def captures(self) -> bool | Literal["auto"]:
        """Whether compiled passes are captured in CUDA graphs on CUDA devices; `auto`: where possible."""
        return False

    @property
    def lora(self) -> tuple[int, float] | None:
        """(rank of LoRA's matrices, their factor alpha / rank) if the start's weights are frozen, rank 0 without LoRA;
        None if all weights are trained."""
        return None

    def _contradictions(self) -> Iterator[str]:
        """All contradictions between keys, as `key: message`."""
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            yield f"micro_batch_size: {self.micro_batch_size} does not divide the batch size {self.batch_size}"
        if self.warmup_steps > self.steps:
            yield f"warmup_steps: a warm-up of {self.warmup_steps} steps is longer than {self.steps} steps of training"
        if self.schedule in WITHOUT_FLOOR and self.min_lr_ratio is not None:
            yield f"min_lr_ratio: the schedule {self.schedule} has no floor; leave the key out, or set null"
        if self.select == "best" and self.evaluate_every is None:
            yield "select: best needs evaluations during training; set evaluate_every"
        if self.schedule == "noam" and self.warmup_steps == 0:
            yield "warmup_steps: the noam schedule needs a warm-up; give at least 1"


class CapturedTraining(Training):
    """Training whose compiled passes can be captured in CUDA graphs: apart from the inputs, every step reads the same
    memory (no dropout masks), and all batches have one shape."""

    cuda_graphs: bool | Literal["auto"] = "auto"

    @property
    def captures(self) -> bool | Literal["auto"]:
        return self.cuda_graphs if self.compile and not self.shards else False

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.cuda_graphs is True and not self.compile:
            yield "cuda_graphs: needs compiled passes; set compile: true as well"
        if self.cuda_graphs is True and self.shards:
            yield "cuda_graphs: sharded parameters are gathered in new memory for every pass; leave one of the two out"


def _in_steps(given: Any, steps: Any) -> Any:
    """`given`, or each of its entries, with shares converted to steps. If the number of steps is missing or wrong,
    which is reported elsewhere, each share becomes 1."""
    if isinstance(given, list | tuple):
        return type(given)(_in_steps(each, steps) for each in given)
    if not isinstance(given, float) or not 0 < given < 1:
        return given
    return steps_of(given, steps) if isinstance(steps, int) and steps > 0 else 1


WITHOUT_FLOOR = ("noam", "constant", "step")
"""Schedules that do not end at a share of the peak learning rate."""


class RunSettings(Section):
    """All settings that decide a run, except its method and seed. A task's subclass gives the types of the sections."""

    model: NetworkSettings
    data: Section
    train: Training


class Overrides(Section):
    """Keys of a run's sections in one place of a recipe, all optional; they are checked as a whole after merging.
    `overrides_of` makes the subclass for each kind of settings."""


@functools.cache
def overrides_of(settings: type[RunSettings]) -> type[Overrides]:
    """The class of one place's settings: all keys are optional, and points in the schedule may be shares."""
    sections: dict[str, Any] = {}
    for name, info in settings.model_fields.items():
        section: Any = info.annotation
        wider = section.moments if issubclass(section, Training) else {}
        keys: dict[str, Any] = {
            key: (wider.get(key, Annotated[field.annotation, *field.metadata, None]), None)
            for key, field in section.model_fields.items()
        }
        sections[name] = (create_model(f"Partial{section.__name__}", __base__=Section, **keys) | None, None)
    return create_model(f"Overrides{settings.__name__}", __base__=Overrides, **sections)
