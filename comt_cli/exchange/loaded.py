"""Trained models with everything needed to use them, from checkpoints, Hugging Face and GGUF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, Field, FiniteFloat, PositiveInt, ValidationError

from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.tokenizer import Tokenizer, tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import problem_of
from comt_cli.exchange.codecs import OwnCodec, TextCodec
from comt_cli.layers.gates import CarriesGates
from comt_cli.models.flops import parameter_count
from comt_cli.models.resnet import ResNet
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import task_of
from comt_cli.tasks.settings.captioning import CaptioningSettings
from comt_cli.tasks.settings.images import ImageSettings
from comt_cli.tasks.settings.translation import BeamSettings, DecodeSettings


@dataclass(frozen=True)
class Loaded:
    """A model of any task; `model` has the types that the file stored.

    Attributes:
        command: trains such models; None for those of any task.
        foreign: whether files of other programs can be such models.
        name: short and valid as a folder name; `description` describes the source.
        spec: the run, for our own checkpoints.
    """

    command: ClassVar[str | None] = None
    foreign: ClassVar[bool] = True

    model: Any
    name: str
    description: str
    spec: RunSpec | None = field(default=None, kw_only=True)

    @property
    def run(self) -> RunSpec:
        """The run of a model from our own checkpoint."""
        assert self.spec is not None
        return self.spec

    @classmethod
    def kind(cls) -> str:
        """Name of such models with its article: `an image classifier`."""
        return task_of(cls.command).model_kind if cls.command is not None else "a model"

    @classmethod
    def from_checkpoint(cls, model: Any, state: Mapping[str, Any], spec: RunSpec, path: Path) -> Self:
        """The model of a checkpoint, with its weights and the file's other entries. Raises `UserError`."""
        try:
            network, more = cls.parts(model, state, spec)
        except ValueError as error:
            said = problem_of(error) if isinstance(error, ValidationError) else error
            raise UserError(f"{path}: its entries besides the weights cannot be used: {said}") from None
        name = f"{spec.row}-{spec.column}-seed{spec.seed}".replace("/", "-")
        said = f"method {spec.method_words}, {network}, {parameter_count(model):,} parameters"
        return cls(model, name, said, **more, spec=spec)

    @classmethod
    def parts(cls, model: Any, state: Mapping[str, Any], spec: RunSpec) -> tuple[str, dict[str, Any]]:  # noqa: ARG003
        """A description of the network, and the fields of this class beyond `Loaded`'s. Raises `ValueError`."""
        return spec.task.network_and_data(spec.settings), {}


@dataclass(frozen=True)
class LoadedText(Loaded):
    """A model that reads one text. `codec` is None if the source has no tokenizer. `context_length` is the longest text
    in training, in tokens. `own_codec` are the options of the codec for our own checkpoints."""

    own_codec: ClassVar[Mapping[str, bool]] = {}

    codec: TextCodec | None = None
    context_length: int | None = None

    @classmethod
    def kind(cls) -> str:
        return "a language model" if cls.command is None else super().kind()

    @classmethod
    def parts(cls, model: Any, state: Mapping[str, Any], spec: RunSpec) -> tuple[str, dict[str, Any]]:
        settings: Any = spec.settings
        codec = OwnCodec(tokenizer_from_json(state["tokenizer"]), **cls.own_codec)
        return text_network(model), {"codec": codec, "context_length": settings.data.sequence_length}

    def text_codec(self) -> TextCodec:
        """The codec. Raises `UserError` if the source has no tokenizer."""
        if self.codec is None:
            raise UserError(f"{self.name} has no tokenizer and cannot read text", "Its folder needs tokenizer.json.")
        return self.codec

    @property
    def vocabulary(self) -> int:
        """The number of tokens in the model's vocabulary."""
        return int(self.model.vocabulary)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises `UserError` if a token is not in the model's vocabulary: the tokenizer belongs to another model."""
        if max(ids) >= (size := self.vocabulary):
            raise UserError(f"{self.name}: its tokenizer gave the id {max(ids)}, but the model has {size} tokens")


class LoadedModel(LoadedText):
    """A LLaMA."""

    command = "train-lm"


class LoadedMaskedModel(LoadedText):
    """A BERT. Its texts begin with the begin token."""

    command = "train-bert"
    foreign = False
    own_codec: ClassVar = {"begins": True}


class LoadedClassifier(LoadedText):
    """A BERT for classification or regression of texts. Its codec takes one text."""

    command = "finetune"
    foreign = False
    own_codec: ClassVar = {"pairs": True}


@dataclass(frozen=True)
class LoadedDecoder(Loaded):
    """An encoder-decoder. `decode` are the run's settings for decoding. `longest` is the largest number of tokens of a
    text in training (None: unknown), for a sentence with the end token, for a caption without it."""

    foreign: ClassVar = False

    model: EncoderDecoder
    tokenizer: Tokenizer
    decode: BeamSettings
    longest: int | None

    @classmethod
    def parts(cls, model: EncoderDecoder, state: Mapping[str, Any], spec: RunSpec) -> tuple[str, dict[str, Any]]:
        settings: Any = spec.settings
        tokenizer, shape = tokenizer_from_json(state["tokenizer"]), model.shape
        tokenizer.special.need("begin")
        network = f"{shape.encoder_layers} + {shape.decoder_layers} layers, width {shape.width}"
        return network, {"tokenizer": tokenizer, "decode": settings.decode, "longest": settings.data.max_length}


class LoadedTranslator(LoadedDecoder):
    """A translator."""

    command = "train-mt"
    decode: DecodeSettings


class LoadedCaptioner(LoadedDecoder):
    """A captioner."""

    command = "train-caption"

    @property
    def data(self) -> CaptionData:
        """Settings of its images."""
        return self.run.settings_as(CaptioningSettings).data


@dataclass(frozen=True)
class LoadedImageModel(Loaded):
    """An image classifier. The model has its running statistics and is in training mode. It was trained on images of
    `size` x `size` pixels, whose colours in [0, 1] had `mean` subtracted and were divided by `std`."""

    command: ClassVar = "train-resnet"
    foreign: ClassVar = False

    model: ResNet
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int

    @classmethod
    def parts(cls, model: ResNet, state: Mapping[str, Any], spec: RunSpec) -> tuple[str, dict[str, Any]]:
        settings = spec.settings_as(ImageSettings)
        size, width, classes = settings.model.size, settings.model.shape().width, settings.data.classes
        found = _ImageParts.model_validate({key: state[key] for key in _ImageParts.model_fields}, strict=True)
        if len(found.classes) != classes:
            raise ValueError(f"it has the names of {len(found.classes)} classes, but its spec has {classes} classes")
        colours = {"mean": tuple(found.mean), "std": tuple(found.std)}
        network = f"{size} of width {width} with {len(model.blocks)} blocks, {classes} classes"
        return network, {"class_names": tuple(found.classes), **colours, "size": found.size}


class _ImageParts(BaseModel):
    classes: list[str]
    mean: Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)]
    std: Annotated[list[Annotated[FiniteFloat, Field(gt=0)]], Field(min_length=3, max_length=3)]
    size: PositiveInt


KINDS = (LoadedModel, LoadedMaskedModel, LoadedClassifier, LoadedTranslator, LoadedCaptioner, LoadedImageModel)


def gated_sites(model: Any) -> list[str]:
    """The names of the sites with a gate in any layer, in the model's order."""
    names = [name for module in model.modules() if isinstance(module, CarriesGates) for name in module.gates]
    return list(dict.fromkeys(names))


def text_network(model: Any) -> str:
    """Residual connection, gates and shape of a network that reads one text, in words."""
    sites, kind = gated_sites(model), type(model.blocks[0].attention_connection)
    residual = vars(kind).get("name", kind.__name__)  # its published name, or the class name of a user's own
    gates = f"gates at {', '.join(sites)}" if sites else "no gates"
    shape = f"{model.shape.layers} layers of width {model.shape.width}"
    return f"residual connection {residual}, {gates}, {shape}"
