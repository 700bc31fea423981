"""A task: what a network is trained to do, declared once in a file of this folder: its settings, its metrics, its data,
and the words that pages and figures use for it. The file of the same name in `training/tasks` has the half that trains.
Both are found by being there: no other module names a task. Imports neither torch nor pydantic."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from comt_cli import words

if TYPE_CHECKING:
    from comt_cli.data.storage import ProgressCallback
    from comt_cli.recipe.settings import RunSettings

S = TypeVar("S", bound="RunSettings")
K = TypeVar("K")


def only_class(module: str, kind: type[K]) -> type[K]:
    """The only class of a kind that a module defines."""
    every = [each for each in vars(importlib.import_module(module)).values() if isinstance(each, type)]
    (found,) = (each for each in every if issubclass(each, kind) and each.__module__ == module)
    return found


Stream = Literal["tokens", "maps"]
"""What goes from block to block: sequences of vectors, [B, T, D], or feature maps, [B, C, H, W]."""


@dataclass(frozen=True)
class Sites:
    """The offers of a task's models to a method: their stream, the sites that can carry a gate, and what only some
    have: `states`, that more than a stream goes from block to block, and that blocks follow training; `values`, that a
    block attends with other values than its own; `bare embedding`, neither scaled nor normalised."""

    stream: Stream
    names: tuple[str, ...]
    features: tuple[str, ...] = ()


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
PROJECTIONS = (*ATTENTION, "gate_proj", "up_proj", "down_proj")  # the seven projections of a LLaMA block
CONVOLUTIONS = ("conv1", "conv2", "conv3")
"""The convolutions of a residual block, in order; a two-layer block has the first two."""
NORMS = ("norm1", "norm2", "norm3")
"""The norms of a residual block, in order; a two-layer block has the first two."""
_UNGATED = (*ATTENTION, "up_proj", "down_proj")
PLACES = {"encoder": _UNGATED, "decoder": _UNGATED, "cross": ATTENTION}
"""The parts of an encoder-decoder whose projections can be named alone, as `encoder.q_proj`. `decoder` is the decoder
without its cross-attention, which is `cross`: so no projection is in two of them, and all of them are in one."""

DECODER_SITES = Sites("tokens", (*PROJECTIONS, "sdpa", "attention", "mlp"), ("states", "values", "bare embedding"))
"""Sites of a LLaMA: the projections, attention's output before `o_proj`, and the whole branches."""
MAP_SITES = Sites("maps", (*CONVOLUTIONS, *NORMS))
"""Sites of residual blocks of maps; the stem, projections of the skip path and the last norm are no sites."""
ENCODER_SITES = Sites("tokens", (*_UNGATED, "sdpa", "attention", "mlp"))  # sites of an encoder alone
ENCODER_DECODER_SITES = Sites(
    "tokens",
    (
        *(*_UNGATED, "sdpa", "attention", "cross", "mlp"),
        *(f"{place}.{name}" for place, names in PLACES.items() for name in names),
    ),
)
"""Sites of an encoder-decoder: the projections of self-attention, under the same names those of cross-attention, and of
the feed-forward network; what each attention mixes; the whole branches; and the projections of one of its `PLACES`. A
gate on `attention` is on `cross` as well, unless the wiring names that."""


@dataclass(frozen=True)
class Unit:
    """The targets that a task counts, in the plural (`tokens`), and an abbreviation for narrow lines (`tok`)."""

    name: str
    short: str

    @property
    def per_second(self) -> str:
        """The speed's key in `result.json`, `timings.jsonl` and the CSVs: `tokens_per_second`."""
        return f"{self.name}_per_second"


@dataclass(frozen=True)
class DifferenceUnit:
    """The unit of a difference to the baseline: `name` ends the CSV's keys (`difference_percent`), `sign` stands in
    headings, `spoken` after a number in a sentence, `full` if that is longer. It is 100 (x / b - 1) or else x - b."""

    name: str
    sign: str
    spoken: str
    is_relative: bool = False
    full: str = ""

    def paired(self, baseline: str) -> str:
        """A phrase on differences to a baseline over several seeds (`statistics.paired_difference`)."""
        interval = "with the 95 % interval of Student's t"
        if self.is_relative:
            return f"ratios to {baseline} in per cent (geometric mean), {interval} on their logarithms"
        return f"in {self.full or self.spoken} against {baseline}, {interval}"


PERCENT = DifferenceUnit("percent", "%", "%", is_relative=True)
POINTS = DifferenceUnit("points", "pts", "points", full="percentage points (pts)")
"""Of a share of the samples: `0.25 points higher` is 91.37 % beside 91.12 %, as papers give differences of accuracy."""
SCORE_POINTS = DifferenceUnit("points", "pts", "points")  # of a score that is no share of anything


@dataclass(frozen=True)
class Metric:
    """A number of an evaluation that a column can show: in a sentence (`words`), on an axis (`label`), in a line of
    progress (`brief`, with `sign` after it). Another metric of the task is shown `beside` it, for the reason of
    `remark`; a published value above `collapsed_above` is that of a run that collapsed."""

    words: str
    label: str
    brief: str
    better: Literal["lower", "higher"]
    difference: DifferenceUnit
    sign: str = ""
    decimals: int = 2
    beside: str | None = None
    remark: str | None = None
    collapsed_above: float | None = None

    def collapsed(self, value: float | None) -> bool:
        """Whether a published value is that of a collapsed run: worse than any other, and no difference is taken."""
        return value is not None and self.collapsed_above is not None and value > self.collapsed_above


percentage = functools.partial(Metric, better="higher", difference=POINTS, sign=" %")
"""A share of the samples in per cent, the more the better."""
score = functools.partial(Metric, better="higher", difference=SCORE_POINTS)
"""A score that is no share of anything, the more the better."""
relative = functools.partial(Metric, better="lower", difference=PERCENT)
"""A perplexity or another number whose ratios count, the less the better."""


@dataclass(frozen=True)
class Drawing:
    """A drawing of a task's runs, where a recipe is a figure: of the rows of a recipe, or of the baseline alone;
    `from_log`: of what this setting has training log, else of the trained network; `of_method`: of this method alone.
    `takes_site` and `takes_text`: the recipe names a site, or what the network reads."""

    of_all_rows: bool = False
    from_log: str | None = None
    of_method: str | None = None
    takes_site: bool = False
    takes_text: bool = False


class AnyDataset(Protocol):
    """A prepared data set."""

    @property
    def content_hash(self) -> str:
        """Hexadecimal digits over the data itself."""


class Task(ABC, Generic[S]):
    """A task. One instance each; its class's docstring is the help of its `command`.

    Its models offer `sites` to methods. `metrics` are by their key in `result.json`; the first is a recipe's default.
    One of its models is a `model_kind`, which `verbs` take. Extra parameters are counted against the model of
    `plain_method`, in words `plain`, which `differs` in smaller scales. `runtime_keys`, settings by section, are no
    part of a run's identity: they change no number, or only the rounding of sums. `description` is a sentence of
    network, data and training, with fields for the sections of the settings, the network's `shape` and `size`, the
    `amount` that a run saw (of what, says `amount`) and `phrases`. `checkpoint_parts` are what a model needs to be used
    without its data set. Speeds count the targets of each step where `counts_targets`, since samples differ, else
    `positions`, padding included; a training step usually reaches a `typical_share` of a matrix product's speed. Tables
    show the median over seeds too where `shows_median`, since single runs fail. `trained_on` is the data in overviews,
    `{column}` the values of a column of `<table>-runs.csv`, `{column:span}` the least and the greatest.
    `takes_weights`: they may be published ones.
    """

    name: ClassVar[str]
    command: ClassVar[str]
    unit: ClassVar[Unit]
    sites: ClassVar[Sites]
    metrics: ClassVar[Mapping[str, Metric]]
    model_kind: ClassVar[str] = "a model of another task"
    verbs: ClassVar[tuple[str, ...]] = ()
    drawings: ClassVar[Mapping[str, Drawing]] = {}
    plain_method: ClassVar[str]
    plain: ClassVar[str]
    differs: ClassVar[str]
    runtime_keys: ClassVar[Mapping[str, frozenset[str]]]
    description: ClassVar[str]
    amount: ClassVar[str]
    checkpoint_parts: ClassVar[tuple[str, ...]] = ()
    counts_targets: ClassVar[bool] = False
    typical_share: ClassVar[float] = 0.4
    shows_median: ClassVar[bool] = False
    trained_on: ClassVar[str]
    takes_weights: ClassVar[bool] = False

    @functools.cached_property
    def settings(self) -> type[S]:
        """The class of a run's settings: the only such class that `tasks/settings/<name>.py` defines."""
        from comt_cli.recipe.settings import RunSettings

        return cast("type[S]", only_class(f"comt_cli.tasks.settings.{self.name}", RunSettings))

    # ---- what can be wrong with a recipe

    def lacks(self, settings: S, metric: str) -> str | None:
        """Why runs of these settings have no number for a metric, where that follows from the settings."""
        return None

    def start_mismatch(self, settings: S, source: RunSettings) -> str | None:
        """Why a run must not start from one with the settings `source`, of any task, where no tensor's shape tells."""
        return None

    # ---- data

    def identify(self, settings: S) -> tuple[str, str | None]:
        """16 hexadecimal digits that identify the data that the settings ask for, before any is prepared, and the
        content hash of what is prepared here of it; None where nothing is. No other task gives the same digits: where
        two read one source, the task's name is part of it. Raises `UserError` where its source cannot be read."""
        from comt_cli.data.prepare import kind_of

        kind = kind_of(settings.data)
        name = kind.fingerprint()
        return name, kind.known_content(name)

    def prepare(self, settings: S, progress: ProgressCallback | None = None) -> AnyDataset:
        """The data set, made now unless it was made before. Imports NumPy. Raises `UserError` where the source is not
        as needed, or prepared files are damaged, and `StorageError` where the disk refuses."""
        from comt_cli.data.prepare import prepare

        dataset: AnyDataset = prepare(settings.data, progress)
        return dataset

    @abstractmethod
    def data_name(self, settings: S) -> str:
        """The data's name in a recipe: `python-docs`, `glyphs10`."""

    # ---- the model

    @abstractmethod
    def dimensions(self, settings: S) -> dict[str, int]:
        """The sizes that the data gives the model, which decide its cost: `{"vocabulary": 2048, "length": 256}`."""

    def positions(self, settings: S) -> int:
        """The positions of a sample, padding included: of an image one; where samples differ those of the example."""
        return 1

    def work(self, settings: S) -> float:
        """The work of a sample, in a unit of the task's own: for comparing runs before any is counted."""
        shape = settings.model.shape()
        return float(self.positions(settings) * sum(_layers(shape)) * shape.width**2)

    # ---- words

    @abstractmethod
    def network_and_data(self, settings: S, size: Sequence[str] = ()) -> str:
        """Network, data and length in one line, for titles; `size` stands beside the network's shape."""

    def describe(self, settings: S, size: str = "", seen: str = "") -> str:
        """The same in a longer sentence, for the head of a column, without a full stop: `description`, filled in.
        `size` is `, 3.9 M parameters`; `seen` how many targets a run saw, or nothing."""
        amount = f" ({seen} {self.amount})" if seen else ""
        sections = {**dict(settings), "shape": settings.model.shape(), "size": size, "amount": amount}
        return self.description.format(**sections, **self.phrases(settings))

    def phrases(self, settings: S) -> dict[str, Any]:
        """Fields of `description` that are no settings."""
        return {}

    def columns(self, settings: S) -> dict[str, Any]:
        """The settings that `<table>-runs.csv` shows: the size of the network, and its data."""
        train = settings.train
        last = {"batch_size": train.batch_size, "precision": train.precision}
        return {"model": settings.model.size, **self.own_columns(settings), **last}

    def own_columns(self, settings: S) -> dict[str, Any]:
        """Columns of this task alone."""
        return {}

    def networks(self, sizes: Sequence[str]) -> str:
        """Sizes of models as papers write them, in a list."""
        return words.listing(sizes)

    def chance(self, settings: S) -> float | None:
        """The value of the first metric that guessing would reach, where there is such a one."""
        return None

    @property
    def metric(self) -> str:
        """The key of the metric that a recipe shows where it names none."""
        return next(iter(self.metrics))

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The keys of `result.json` that are shown."""
        return (
            *("step", "steps", self.unit.name, "loss", *self.metrics, "train_loss", "diverged_at", "last_finite_loss"),
            *("parameters", "extra_parameters", "extra_parameters_percent", "flops", "train_seconds"),
            *(self.unit.per_second, "mfu", "peak_memory_bytes", "waiting_share", "device", "products", "attention"),
            *("numerics", "git_commit"),
        )


FIRST = "train-lm"
"""The command that stands first where tasks are listed, and that a recipe is taken for which does not say its own."""


@functools.cache
def tasks() -> Mapping[str, Task[Any]]:
    """Every task by its command, one of each file beside this one. Imports neither torch nor pydantic."""
    package = importlib.import_module(__package__)
    files = [each.name for each in pkgutil.iter_modules(package.__path__) if not each.ispkg and each.name != "base"]
    kinds: list[type[Task[Any]]] = [only_class(f"{__package__}.{name}", Task) for name in files]  # type: ignore[type-abstract]
    return {kind.command: kind() for kind in sorted(kinds, key=lambda kind: (kind.command != FIRST, kind.command))}


def task_of(command: str) -> Task[Any]:
    """The task that a command trains. Raises `ValueError` where there is no such command."""
    found = tasks().get(command)
    if found is None:
        raise ValueError(f"there is no command {command!r} that trains; there are {', '.join(tasks())}")
    return found


class TokenTask(Task[S]):
    """Networks read or write tokens of a vocabulary; `family` is what they are called."""

    family: ClassVar[str]
    unit: ClassVar = Unit("tokens", "tok")
    runtime_keys: ClassVar = {
        "train": frozenset({"save_every", "keep_every", "sharding", "kernels", "cuda_graphs"}),
        "data": frozenset({"folder"}),
    }
    checkpoint_parts: ClassVar = ("vocabulary", "tokenizer")
    differs: ClassVar = "whose width and vocabulary are other ones"

    @abstractmethod
    def step(self, settings: S) -> str:
        """The samples of a step: `32 images`."""

    def network_and_data(self, settings: S, size: Sequence[str] = ()) -> str:
        shape, data = settings.model.shape(), self.data_name(settings)
        data = data if ":" in data else words.in_words(data)
        what = ", ".join([f"{'+'.join(map(str, _layers(shape)))} layers", f"{shape.width} wide", *size])
        steps = f"{words.plural(settings.train.steps, 'step')} of {self.step(settings)}"
        return f"{self.family} {settings.model.size} ({what}) on {data}, {steps}"

    def networks(self, sizes: Sequence[str]) -> str:
        return f"{self.family} {words.listing(sizes)}"


def _layers(shape: Any) -> tuple[int, ...]:
    """The blocks of every stack, or stage."""
    if hasattr(shape, "layers"):
        return (shape.layers,)
    return tuple(shape.blocks) if hasattr(shape, "blocks") else (shape.encoder_layers, shape.decoder_layers)


class TextTask(TokenTask[S]):
    """Networks read sequences of so many tokens of a corpus."""

    def data_name(self, settings: Any) -> str:
        return str(settings.data.corpus)

    def positions(self, settings: Any) -> int:
        return int(settings.data.sequence_length)

    def step(self, settings: Any) -> str:
        return f"{settings.train.batch_size:,} x {settings.data.sequence_length:,} tokens"

    def own_columns(self, settings: Any) -> dict[str, Any]:
        data = settings.data
        return {"corpus": data.corpus, "vocabulary": data.vocabulary_size, "sequence_length": data.sequence_length}


class EncoderDecoderTask(TokenTask[S]):
    """Networks encode a source of any kind and decode a text."""

    sites: ClassVar = ENCODER_DECODER_SITES
    plain_method: ClassVar = "post-ln"
    counts_targets: ClassVar = True

    def positions(self, settings: S) -> int:
        dimensions = self.dimensions(settings)
        return dimensions["length"] * (dimensions.get("pairs") or dimensions["captions"])
