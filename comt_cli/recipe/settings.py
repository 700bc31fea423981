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
"""What a recipe, or a file from anywhere, may ask for at most: hundreds of times what was ever trained, and so little
that no product of a model's sizes leaves the 64 bits in which tensors are counted."""


def matching(pattern: str, allowed: str, names: Sequence[str] = ()) -> AfterValidator:
    """Validator of text: refuses what is none of `names` and does not match `pattern`, in words that end `allowed`."""
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
"""How a gate's matrices start; `layers.gates.draw_gate_weight` says what each means."""


class Section(BaseModel):
    """A group of keys: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    later: ClassVar[frozenset[str]] = frozenset()
    """Keys that came when there were runs already: part of a run's identity only where they are not the default."""

    def stored(self, *without: str) -> dict[str, Any]:
        """The keys as a run's identity and its `spec.json` have them: defaults included, but for those of `later`, and
        for those `without` which it is the same run."""
        usual = {key for key in self.later if getattr(self, key) == type(self).model_fields[key].default}
        return self.model_dump(mode="json", exclude={*without, *usual})


class NetworkSettings(Section):
    """A network: its family, which says which module builds it, and a size, one of `sizes`, any of whose numbers a key
    of the same name may override."""

    sizes: ClassVar[Mapping[str, Any]] = {}

    family: str
    size: str

    @model_validator(mode="after")
    def _size_is_known(self) -> Self:
        if self.size not in self.sizes:
            raise ValueError(f"size: no size is called {self.size!r}; {nearest(self.size, self.sizes)}")
        return self

    def shape(self) -> Any:
        """The shape that the network is built from: the named size with the overrides applied."""
        raise NotImplementedError

    def _numbers(self, keys: Iterable[str]) -> dict[str, Any]:
        """Numbers of the shape, each as it is given, else that of the named size."""
        return {key: getattr(self, key) or getattr(self.sizes[self.size], key) for key in keys}


class AttentionSettings(NetworkSettings):
    """A network whose blocks have attention and a feed-forward network."""

    width: Width | None = None
    ffn_width: FFNWidth | None = None
    heads: Width | None = None

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        shape = self.shape()
        if shape.width % shape.heads:
            raise ValueError(f"heads: width {shape.width} must split evenly into {shape.heads} heads")
        return self


def _steps_or_share(given: float) -> float:
    if given < 0 or (isinstance(given, float) and not 0 < given < 1):
        raise ValueError(f"{given!r} is neither a whole number of steps (without a point) nor a share between 0 and 1")
    return given


StepsOrShare = Annotated[int | float, AfterValidator(_steps_or_share)]
"""A moment in the training, as recipes and `--set` say it: a whole number of steps, or, below 1, a share of `steps`."""


def steps_of(share: float, steps: int) -> int:
    """The whole number of steps nearest to a share of them, upwards from a half; at least 1. The share is taken as it
    is written: 0.29 of 50 steps are 14.5 and so 15, whatever its binary fraction."""
    return max(1, math.floor(Exact(str(share)) * steps + Exact(1, 2)))


class Training(Section):
    """Training settings. Steps are optimiser updates; batch sizes count rows or images over all devices. Runs know
    whole steps alone; recipes may give the keys of `moments` as shares of `steps` too, in these types."""

    moments: ClassVar[Mapping[str, Any]] = {"warmup_steps": StepsOrShare, "keep_every": StepsOrShare | None}
    later: ClassVar[frozenset[str]] = frozenset({"select", "deterministic", "keep_every"})
    of_start: ClassVar[tuple[str, ...]] = ()
    """Keys about weights that a run starts from: where it starts from none, they are refused."""

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
    evaluate_every: Count | None = None
    evaluation_batch_size: Count | None = None
    select: Literal["last", "best"] = "last"
    save_every: Count = 1000
    keep_every: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """Shares become whole steps. Where the schedule has a floor, one that is not given is stored as what it is."""
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
            raise ValueError(*wrong)  # all at once: `validate` makes a problem of each
        return self

    def keeps(self, step: int) -> bool:
        """Whether the weights after a step stay in the run's directory, for `comt average`."""
        return self.keep_every is not None and step % self.keep_every == 0

    @property
    def averaged_steps(self) -> tuple[int, ...]:
        """The steps whose weights are averaged in the end, in rising order; none where the last are kept."""
        return ()

    @property
    def passing_steps(self) -> list[int]:
        """The averaged steps whose weights nobody asked to keep when the run has ended."""
        return [step for step in self.averaged_steps if not self.keeps(step)]

    @property
    def moments_per_parameter(self) -> int:
        """Numbers that the optimiser keeps for every parameter."""
        raise NotImplementedError

    @property
    def recomputes(self) -> bool:
        """Activation checkpointing: whether blocks are computed again for the backward pass."""
        return False

    @property
    def shards(self) -> bool:
        """Whether several processes share the parameters among them."""
        return False

    @property
    def captures(self) -> bool | Literal["auto"]:
        """Whether compiled passes are captured in CUDA graphs, on CUDA devices; `auto`: where they can be."""
        return False

    @property
    def lora(self) -> tuple[int, float] | None:
        """What comes from the start is not trained: the rank of LoRA's matrices beside it, 0 without LoRA, and the
        factor on their product, alpha / rank. None where all is trained."""
        return None

    def _contradictions(self) -> Iterator[str]:
        """Everything that keys say against each other, as `key: what is wrong`."""
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            yield f"micro_batch_size: {self.micro_batch_size} does not divide the batch size {self.batch_size}"
        if self.warmup_steps > self.steps:
            yield f"warmup_steps: a warm-up of {self.warmup_steps} steps is longer than {self.steps} steps"
        if self.schedule in WITHOUT_FLOOR and self.min_lr_ratio is not None:
            yield f"min_lr_ratio: the schedule {self.schedule} has none; leave the key out, or null"
        if self.select == "best" and self.evaluate_every is None:
            yield "select: the best step is found by evaluations during training; give evaluate_every"
        if self.schedule == "noam" and self.warmup_steps == 0:
            yield "warmup_steps: the noam schedule is defined by its warm-up; give at least 1"


class CapturedTraining(Training):
    """Training whose compiled passes can be captured in CUDA graphs: inputs apart, a pass reads the same memory in
    every step (no masks of dropout), and all batches have one shape."""

    cuda_graphs: bool | Literal["auto"] = "auto"

    @property
    def captures(self) -> bool | Literal["auto"]:
        return self.cuda_graphs if self.compile and not self.shards else False

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.cuda_graphs is True and not self.compile:
            yield "cuda_graphs: compiled code is captured; say compile: true as well"
        if self.cuda_graphs is True and self.shards:
            yield "cuda_graphs: sharded parameters are gathered in other memory for every pass; leave out one of them"


def _in_steps(given: Any, steps: Any) -> Any:
    """`given`, or each of its entries, in whole steps where it is a share. Where the steps are missing or wrong,
    which is reported elsewhere, 1 stands for each share."""
    if isinstance(given, list | tuple):
        return type(given)(_in_steps(each, steps) for each in given)
    if not isinstance(given, float) or not 0 < given < 1:
        return given
    return steps_of(given, steps) if isinstance(steps, int) and steps > 0 else 1


WITHOUT_FLOOR = ("noam", "constant", "step")
"""Schedules that do not fall to a share of the highest learning rate."""


class RunSettings(Section):
    """Everything that decides a run, apart from its method and its seed. A task's own class types the sections."""

    model: NetworkSettings
    data: Section
    train: Training


class Overrides(Section):
    """Keys of a run's sections, all optional, as one place of a recipe gives them: complete only after merging, and
    checked as a whole then. `overrides_of` makes the class for each kind of settings."""


@functools.cache
def overrides_of(settings: type[RunSettings]) -> type[Overrides]:
    """The class of what one place may say of such settings: any of their keys, moments of training as shares too."""
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
