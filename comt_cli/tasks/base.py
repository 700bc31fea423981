"""The declaration of a task, one file of this folder each: its settings, metrics, data, and the texts of pages and
figures. The file of the same name in `training/tasks` trains it. Both are found by their file names; no other module
names a task. Imports neither torch nor pydantic."""

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
    """The one subclass of `kind` that a module defines."""
    every = [each for each in vars(importlib.import_module(module)).values() if isinstance(each, type)]
    (found,) = (each for each in every if issubclass(each, kind) and each.__module__ == module)
    return found


Stream = Literal["tokens", "maps"]
"""The residual stream: sequences of vectors, [B, T, D], or feature maps, [B, C, H, W]."""


@dataclass(frozen=True)
class Sites:
    """The interface of a task's models to methods: their stream, the sites that can carry a gate, and optional
    features: `states` (blocks pass more than the stream, and follow the training step), `values` (a block can attend
    with other values than its own), `heads` (attention can normalise each head's queries, keys and values, and leave
    out a token's own value), `bare embedding` (neither scaled nor normalised)."""

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
"""The parts of an encoder-decoder whose projections have names such as `encoder.q_proj`. `decoder` excludes its
cross-attention, which is `cross`; every projection is in exactly one of them."""

DECODER_SITES = Sites(
    "tokens", (*PROJECTIONS, "sdpa", "attention", "mlp"), ("states", "values", "heads", "bare embedding")
)
"""Sites of a LLaMA: the projections, attention's output before `o_proj`, and whole branches."""
MAP_SITES = Sites("maps", (*CONVOLUTIONS, *NORMS))
"""Sites of residual blocks of maps; the stem, projections of the skip path and the last norm are not sites."""
ENCODER_SITES = Sites("tokens", (*_UNGATED, "sdpa", "attention", "mlp"))  # sites of an encoder alone
ENCODER_DECODER_SITES = Sites(
    "tokens",
    (
        *(*_UNGATED, "sdpa", "attention", "cross", "mlp"),
        *(f"{place}.{name}" for place, names in PLACES.items() for name in names),
    ),
)
"""Sites of an encoder-decoder: the projections of self-attention, cross-attention (with the same names) and the
feed-forward network; the output of each attention; whole branches; and the projections of one of its `PLACES`. A gate
at `attention` is also at `cross`, unless the wiring names `cross`."""


@dataclass(frozen=True)
class Unit:
    """The targets that a task counts: plural noun (`tokens`), and abbreviation for narrow lines (`tok`)."""

    name: str
    short: str

    @property
    def per_second(self) -> str:
        """The key of the speed in `result.json`, `timings.jsonl` and the CSVs: `tokens_per_second`."""
        return f"{self.name}_per_second"


@dataclass(frozen=True)
class DifferenceUnit:
    """The unit of a difference to the baseline, 100 (x / b - 1) if it `is_relative`, else x - b. `name` is the suffix
    of CSV keys (`difference_percent`), `sign` is for headings, `spoken` follows a number in a sentence, `full` is its
    longer form."""

    name: str
    sign: str
    spoken: str
    is_relative: bool = False
    full: str = ""

    def paired(self, baseline: str) -> str:
        """A phrase about differences to a baseline over several seeds (`statistics.paired_difference`)."""
        interval = "with the 95 % interval of Student's t"
        if self.is_relative:
            return f"ratios to {baseline} in per cent (geometric mean), {interval} on their logarithms"
        return f"in {self.full or self.spoken} against {baseline}, {interval}"


PERCENT = DifferenceUnit("percent", "%", "%", is_relative=True)
POINTS = DifferenceUnit("points", "pts", "points", full="percentage points (pts)")
"""For shares of the samples: 91.37 % is 0.25 points higher than 91.12 %, as papers report accuracy."""
SCORE_POINTS = DifferenceUnit("points", "pts", "points")  # for scores that are not shares


@dataclass(frozen=True)
class Metric:
    """A number of an evaluation that a column can show, with its text for sentences (`words`), axes (`label`) and
    progress lines (`brief`, followed by `sign`). Tables show another metric `beside` it, for the reason in `remark`. A
    published value above `collapsed_above` is a collapsed run's."""

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
        """Whether a published value is a collapsed run's: it counts as worse than any other, without a difference."""
        return value is not None and self.collapsed_above is not None and value > self.collapsed_above


percentage = functools.partial(Metric, better="higher", difference=POINTS, sign=" %")
"""A share of the samples in per cent; higher is better."""
score = functools.partial(Metric, better="higher", difference=SCORE_POINTS)
"""A score that is not a share; higher is better."""
relative = functools.partial(Metric, better="lower", difference=PERCENT)
"""A perplexity or another number compared by ratios; lower is better."""


@dataclass(frozen=True)
class Drawing:
    """A drawing for recipes that are figures: of all rows of the recipe, or of the baseline alone; `from_log`: of the
    values that this setting logs, else of the trained network; `of_method`: for this method alone. `takes_site`,
    `takes_text`: the recipe names a site, or a text to read."""

    of_all_rows: bool = False
    from_log: str | None = None
    of_method: str | None = None
    takes_site: bool = False
    takes_text: bool = False


class AnyDataset(Protocol):
    """A prepared data set."""

    @property
    def content_hash(self) -> str:
        """Hexadecimal hash of the data itself."""


class Task(ABC, Generic[S]):
    """A task; one instance each. The docstring of its class is the help of its `command`.

    Its models offer `sites` to methods. `metrics` are by key of `result.json`; the first is a recipe's default.
    `model_kind` names one of its models, which `verbs` take. Extra parameters are counted against the model of
    `plain_method`, in words `plain`; smaller scales have one `differs`. `runtime_keys`, settings by section, are not
    part of a run id: they change no number, or only the rounding of sums. `description` is a sentence about network,
    data and training, with fields for the sections of the settings, the network's `shape` and `size`, the `amount` of
    data per run and `phrases`. `checkpoint_parts` are the entries that a model needs without its data set. Speeds count
    the targets of each step if `counts_targets`, because samples differ, else `positions`, padding included; a training
    step usually reaches a `typical_share` of a matrix product's speed. Tables also show the median over seeds if
    `shows_median`, because single runs fail. `trained_on` names the data in overviews: `{column}` is a value of
    `<table>-runs.csv`, `{column:span}` its range. `takes_weights`: runs may start from published weights.
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
        """The class of a run's settings: the one that `tasks/settings/<name>.py` defines."""
        from comt_cli.recipe.settings import RunSettings

        return cast("type[S]", only_class(f"comt_cli.tasks.settings.{self.name}", RunSettings))

    # ---- what can be wrong with a recipe

    def lacks(self, settings: S, metric: str) -> str | None:
        """Why runs with these settings do not compute a metric; None if they do."""
        return None

    def start_mismatch(self, settings: S, source: RunSettings) -> str | None:
        """Why a run must not start from one with the settings `source`, of any task, if no tensor's shape shows it."""
        return None

    # ---- data

    def identify(self, settings: S) -> tuple[str, str | None]:
        """16 hexadecimal digits that identify the requested data before it is prepared, and the content hash of the
        data prepared here; None if there is none. Tasks that read one source have different digits. Raises `UserError`
        if the source cannot be read."""
        from comt_cli.data.prepare import kind_of

        kind = kind_of(settings.data)
        name = kind.fingerprint()
        return name, kind.known_content(name)

    def prepare(self, settings: S, progress: ProgressCallback | None = None) -> AnyDataset:
        """The data set, prepared now unless it was before. Imports NumPy. Raises `UserError` if the source is not as
        needed or prepared files are damaged, `StorageError` if files cannot be written."""
        from comt_cli.data.prepare import prepare

        dataset: AnyDataset = prepare(settings.data, progress)
        return dataset

    @abstractmethod
    def data_name(self, settings: S) -> str:
        """The name of the data in a recipe: `python-docs`, `glyphs10`."""

    # ---- the model

    @abstractmethod
    def dimensions(self, settings: S) -> dict[str, int]:
        """The sizes that depend on the data and decide the model's cost: `{"vocabulary": 2048, "length": 256}`."""

    def positions(self, settings: S) -> int:
        """The positions of a sample, padding included; 1 for an image. Where samples differ, those of a typical one."""
        return 1

    def work(self, settings: S) -> float:
        """The work of a sample in the task's own unit, to compare runs before their operations are counted."""
        shape = settings.model.shape()
        return float(self.positions(settings) * sum(_layers(shape)) * shape.width**2)

    # ---- words

    @abstractmethod
    def network_and_data(self, settings: S, size: Sequence[str] = ()) -> str:
        """Network, data and length in one line, for titles; `size` follows the network's shape."""

    def describe(self, settings: S, size: str = "", seen: str = "") -> str:
        """`description` with its fields filled in, for the head of a column, without a full stop. `size` is like `, 3.9
        M parameters`; `seen` is the number of targets of a run, or ""."""
        amount = f" ({seen} {self.amount})" if seen else ""
        sections = {**dict(settings), "shape": settings.model.shape(), "size": size, "amount": amount}
        return self.description.format(**sections, **self.phrases(settings))

    def phrases(self, settings: S) -> dict[str, Any]:
        """The fields of `description` that are not settings."""
        return {}

    def columns(self, settings: S) -> dict[str, Any]:
        """The settings in `<table>-runs.csv`: the size of the network, and its data."""
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
        """The value of the first metric for random guessing, if it is defined."""
        return None

    @property
    def metric(self) -> str:
        """The key of the default metric of a recipe."""
        return next(iter(self.metrics))

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The keys of `result.json` that are printed."""
        return (
            *("step", "steps", self.unit.name, "loss", *self.metrics, "train_loss", "diverged_at", "last_finite_loss"),
            *("parameters", "extra_parameters", "extra_parameters_percent", "flops", "train_seconds"),
            *(self.unit.per_second, "mfu", "peak_memory_bytes", "waiting_share", "device", "products", "attention"),
            *("numerics", "git_commit"),
        )


FIRST = "train-lm"
"""The command that lists of tasks begin with, and the default of recipes without one."""


@functools.cache
def tasks() -> Mapping[str, Task[Any]]:
    """Every task by its command, one per file of this folder. Imports neither torch nor pydantic."""
    package = importlib.import_module(__package__)
    files = [each.name for each in pkgutil.iter_modules(package.__path__) if not each.ispkg and each.name != "base"]
    kinds: list[type[Task[Any]]] = [only_class(f"{__package__}.{name}", Task) for name in files]  # type: ignore[type-abstract]
    return {kind.command: kind() for kind in sorted(kinds, key=lambda kind: (kind.command != FIRST, kind.command))}


def task_of(command: str) -> Task[Any]:
    """The task that a command trains. Raises `ValueError` for an unknown command."""
    found = tasks().get(command)
    if found is None:
        raise ValueError(f"there is no training command {command!r}; valid: {', '.join(tasks())}")
    return found


class TokenTask(Task[S]):
    """Tasks of networks that read or write tokens of a vocabulary; `family` is the network's name."""

    family: ClassVar[str]
    unit: ClassVar = Unit("tokens", "tok")
    runtime_keys: ClassVar = {
        "train": frozenset({"save_every", "keep_every", "observe_every", "sharding", "kernels", "cuda_graphs"}),
        "data": frozenset({"folder", "dtype"}),
    }
    checkpoint_parts: ClassVar = ("vocabulary", "tokenizer")
    differs: ClassVar = "whose width and vocabulary are other ones"

    @abstractmethod
    def step(self, settings: S) -> str:
        """The samples of a step, in words: `32 images`."""

    def network_and_data(self, settings: S, size: Sequence[str] = ()) -> str:
        shape, data = settings.model.shape(), self.data_name(settings)
        data = data if ":" in data else words.in_words(data)
        what = ", ".join([f"{'+'.join(map(str, _layers(shape)))} layers", f"{shape.width} wide", *size])
        steps = f"{words.plural(settings.train.steps, 'step')} of {self.step(settings)}"
        return f"{self.family} {settings.model.size} ({what}) on {data}, {steps}"

    def networks(self, sizes: Sequence[str]) -> str:
        return f"{self.family} {words.listing(sizes)}"


def _layers(shape: Any) -> tuple[int, ...]:
    if hasattr(shape, "layers"):
        return (shape.layers,)
    return tuple(shape.blocks) if hasattr(shape, "blocks") else (shape.encoder_layers, shape.decoder_layers)


class TextTask(TokenTask[S]):
    """Tasks of networks that read sequences of a fixed number of tokens of a corpus."""

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
    """Tasks of networks that encode a source and decode a text."""

    sites: ClassVar = ENCODER_DECODER_SITES
    plain_method: ClassVar = "post-ln"
    counts_targets: ClassVar = True

    def positions(self, settings: S) -> int:
        dimensions = self.dimensions(settings)
        return dimensions["length"] * (dimensions.get("pairs") or dimensions["captions"])
