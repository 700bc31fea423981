"""Everything that a run is told, typed: the model, the data, the training. One class a section of a recipe.

A field's type, limits and default are here and nowhere else; `recipes/README.md` explains each once, and a test holds
the two together. Classes refuse unknown keys. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction as Exact
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, model_validator
from pydantic_core import PydanticCustomError

from comt_cli.recipe.problems import nearest
from comt_cli.recipe.sizes import LLAMA_SIZES

MAX_WIDTH = 2**20
MAX_FFN_WIDTH = 2**22
MAX_LAYERS = 1000
MAX_LENGTH = 2**20
MAX_VOCABULARY = 2**24
MAX_COUNT = 2**31 - 1
"""What a recipe, or a file from anywhere, may ask for at most: hundreds of times what was ever trained, and so little
that no product of a model's sizes leaves the 64 bits in which tensors are counted. A thousand layers are a minute's
work to count."""


def _number(given: Any) -> Any:
    if isinstance(given, bool):  # which is an int to Python
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return given


WholeNumber = Annotated[int, BeforeValidator(_number)]
Width = Annotated[WholeNumber, Field(gt=0, le=MAX_WIDTH)]
FFNWidth = Annotated[WholeNumber, Field(gt=0, le=MAX_FFN_WIDTH)]
Layers = Annotated[WholeNumber, Field(gt=0, le=MAX_LAYERS)]
Vocabulary = Annotated[WholeNumber, Field(gt=0, le=MAX_VOCABULARY)]
Count = Annotated[WholeNumber, Field(gt=0, le=MAX_COUNT)]
"""Of steps, rows and images."""
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


class NetworkSettings(Section):
    """The settings of a network: its family, which says which module builds it, and a size that the family names."""

    family: str
    size: str

    def shape(self) -> Any:
        """What the network is built from: the named size with the overrides applied."""
        raise NotImplementedError


class ModelSettings(NetworkSettings):
    """A LLaMA: a named size, any of whose numbers may be overridden, and its initialisation."""

    family: Literal["llama"] = "llama"
    size: str = "130m"
    width: Width | None = None
    ffn_width: FFNWidth | None = None
    layers: Layers | None = None
    heads: Width | None = None
    kv_heads: Width | None = None
    tied_embeddings: bool = False
    rope_theta: PositiveFloat = 10000.0
    norm_eps: PositiveFloat = 1e-6
    init_std: PositiveFloat = 0.02
    embedding_init_std: PositiveFloat = 0.02

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        if self.size not in LLAMA_SIZES:
            raise ValueError(f"size: no size is called {self.size!r}; {nearest(self.size, LLAMA_SIZES)}")
        shape = self.shape()
        if shape.width % shape.heads or (shape.width // shape.heads) % 2:
            raise ValueError(
                f"heads: width {shape.width} must split into {shape.heads} heads of an even size "
                "(rotary embeddings turn channels in pairs)"
            )
        if shape.heads % shape.kv_heads:
            raise ValueError(f"kv_heads: {shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly")
        return self

    def shape(self) -> LlamaShape:
        """The numbers the model is built from: the named size with the overrides applied."""
        size = LLAMA_SIZES[self.size]
        heads = self.heads or size.heads
        return LlamaShape(
            width=self.width or size.width,
            ffn_width=self.ffn_width or size.ffn_width,
            layers=self.layers or size.layers,
            heads=heads,
            kv_heads=self.kv_heads or heads,
        )


class LlamaShape(Section):
    """The widths and depth of a LLaMA, all given."""

    width: Width
    ffn_width: FFNWidth
    layers: Layers
    heads: Width
    kv_heads: Width


class DataSettings(Section):
    """What the model reads: the corpus, how it is cut into tokens, and how the tokens are laid out in rows."""

    corpus: Annotated[str, Field(pattern=r"^(python-docs|c4|openwebtext|files:.+)$")] = "python-docs"
    tokenizer: Literal["sentencepiece", "t5", "bytes"] = "sentencepiece"
    vocabulary: Vocabulary | None = None
    rows: Literal["pad", "pack"] = "pack"
    sequence_length: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 256
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_train_tokens: Tokens | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """A value that is implied is stored in one way, so that saying it does not make another run."""
        if not isinstance(given, dict):
            return given
        said = dict(given)
        if said.get("vocabulary") == FIXED_VOCABULARY.get(str(said.get("tokenizer"))):
            said["vocabulary"] = None
        if said.get("validation_fraction") is None and said.get("corpus") not in SPLIT_CORPORA:
            said["validation_fraction"] = 0.05
        return said

    @model_validator(mode="after")
    def _corpus_fits(self) -> Self:
        if self.tokenizer == "sentencepiece" and self.vocabulary is None:
            raise ValueError("vocabulary: a SentencePiece tokenizer is trained to a size; say which, for instance 2048")
        fixed = FIXED_VOCABULARY.get(self.tokenizer)
        if fixed is not None and self.vocabulary not in (None, fixed):
            raise ValueError(f"vocabulary: the tokenizer {self.tokenizer} has {fixed} tokens; leave the key out")
        if self.corpus in SPLIT_CORPORA and self.validation_fraction is not None:
            raise ValueError(
                f"validation_fraction: {self.corpus} has a validation split of its own; leave the key out, or null"
            )
        if self.corpus in ("c4", "openwebtext") and self.max_train_tokens is None:
            raise ValueError("max_train_tokens: say how many tokens of this corpus to prepare")
        return self

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are, special ones included: the model's embedding rows."""
        size = FIXED_VOCABULARY.get(self.tokenizer, self.vocabulary)
        assert size is not None  # the validator above saw to it
        return size


FIXED_VOCABULARY = {"t5": 32000, "bytes": 258}
"""Vocabulary of the tokenizers that are not trained. T5's sentinels (32000 to 32099) are left out, as in the papers'
scripts: text never produces them. Bytes: padding, end of text, then the 256 byte values."""

SPLIT_CORPORA = ("c4",)
"""Corpora whose authors divided them into training and validation."""


def _steps_or_share(given: float) -> float:
    if given < 0 or (isinstance(given, float) and not 0 < given < 1):
        if isinstance(given, float) and given.is_integer() and given >= 0:
            raise ValueError(f"{given!r} is no share of the steps; for so many of them write {int(given)}")
        raise ValueError(f"{given!r} is neither a whole number of steps nor a share of them between 0 and 1")
    return given


StepsOrShare = Annotated[int | float, AfterValidator(_steps_or_share)]
"""What recipes and `--set` may say of a moment in the training: a whole number of steps, or, as a fraction between 0
and 1, a share of `steps`."""


def steps_of(share: float, steps: int) -> int:
    """The whole number of steps nearest to a share of them, upwards from a half; at least 1.

    The share is taken as it is written: 0.29 of 50 steps are 14.5 and so 15, whatever its binary fraction.
    """
    return max(1, math.floor(Exact(str(share)) * steps + Exact(1, 2)))


class Training(Section):
    """How a model learns, whatever it is. Steps are optimiser updates; batch sizes count rows or images over all
    devices. A run knows whole steps alone: the keys of `moments` may be given as shares of `steps`, in the types that
    stand there."""

    moments: ClassVar[Mapping[str, Any]] = {"warmup_steps": StepsOrShare}

    steps: Count
    batch_size: Count
    micro_batch_size: Count | None = None
    learning_rate: PositiveFloat
    schedule: str
    warmup_steps: Annotated[WholeNumber, Field(ge=0, le=MAX_COUNT)] = 0
    min_lr_ratio: Fraction | None = None
    weight_decay: NonNegative = 0.0
    gradient_clipping: NonNegative = 0.0
    precision: Precision = "fp32"
    compile: bool = False
    kernels: Kernels = "auto"
    log_every: Count = 10
    evaluate_every: Count | None = None
    evaluation_batch_size: Count | None = None
    save_every: Count = 1000

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """Shares become whole steps. Where the schedule has a floor, one that is not given is stored as what it is."""
        if not isinstance(given, dict):
            return given
        said = dict(given)
        for key in cls.moments:
            if key in said:
                said[key] = _in_steps(said[key], said.get("steps"))
        if said.get("min_lr_ratio") is None:
            said["min_lr_ratio"] = None if said.get("schedule") in WITHOUT_FLOOR else 0.1
        return said

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        wrong = list(self._contradictions())
        if wrong:
            raise ValueError(*wrong)  # all at once: `validate` makes a problem of each
        return self

    @property
    def moments_per_parameter(self) -> int:
        """How many numbers the optimiser keeps for every parameter."""
        raise NotImplementedError

    @property
    def recomputes(self) -> bool:
        """Whether blocks are computed again for the backward pass (activation checkpointing)."""
        return False

    @property
    def shards(self) -> bool:
        """Whether several processes share the parameters among them."""
        return False

    @property
    def held_rate(self) -> float | None:
        """The learning rate that is held during the warm-up; None where it rises."""
        return None

    @property
    def drops(self) -> tuple[int, ...]:
        """The steps after which the schedule `step` divides the learning rate by ten."""
        return ()

    def _contradictions(self) -> Iterator[str]:
        """Everything that keys say against each other, as `key: what is wrong`."""
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            yield f"micro_batch_size: a batch of {self.batch_size} cannot be cut into parts of {self.micro_batch_size}"
        if self.warmup_steps > self.steps:
            yield (
                f"warmup_steps: warm-up of {self.warmup_steps} steps is longer than {self.steps} steps; "
                f"give at most {self.steps}"
            )
        if self.schedule in WITHOUT_FLOOR and self.min_lr_ratio is not None:
            yield f"min_lr_ratio: the schedule {self.schedule} has none; leave the key out, or null"
        if self.schedule == "noam" and self.warmup_steps == 0:
            yield "warmup_steps: the noam schedule is defined by its warm-up; give at least 1"


class TrainSettings(Training):
    """How a language model learns: with Adam. Batch sizes count rows of tokens."""

    batch_size: Count = 512
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["cosine", "linear", "noam", "constant"] = "cosine"
    optimizer: Literal["adam", "adamw"] = "adam"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    activation_checkpointing: bool = False
    sharding: Literal["none", "fsdp"] = "none"
    evaluation_tokens: Tokens | None = None

    @property
    def moments_per_parameter(self) -> int:
        return 2

    @property
    def recomputes(self) -> bool:
        return self.activation_checkpointing

    @property
    def shards(self) -> bool:
        return self.sharding == "fsdp"


def _in_steps(given: Any, steps: Any) -> Any:
    """`given`, or each of its entries, in whole steps where it is a share. Of steps that are missing or wrong, which is
    told elsewhere, there are no shares: 1 stands for each."""
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


class Settings(RunSettings):
    """Everything that decides a run of a language model, apart from its method and its seed."""

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
