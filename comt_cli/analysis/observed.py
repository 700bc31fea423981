"""Networks of tokens on one input (a text, a sentence and its translation, an image and its caption): one forward pass
that records inputs and outputs of modules, the values of the gates, and the residual stream.

Shapes: B batch, T tokens, D width, N channels, R regions of an image, F features.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.data.prepare import prepare
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded, LoadedCaptioner, LoadedText, LoadedTranslator
from comt_cli.generation.caption import ImageCaptioner
from comt_cli.generation.transcript import one_line
from comt_cli.generation.translate import translator
from comt_cli.layers.residual.base import OutputAggregation, ResidualConnection, State, final_stream
from comt_cli.models.recorded import gate_factors, reads_source, recorded, stacks_of, undisturbed
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.tasks.settings.translation import TranslationSettings

DEFAULT_TEXT = "Once a king left his castle by the sea."
"""A text like those of the papers: content words, function words, punctuation."""
DEFAULT_SENTENCES = {
    "en": "The train to Berlin leaves on Monday at 9:30.",
    "de": "Der Zug nach Berlin fährt am Montag um 9:30 Uhr ab.",
    "fr": "Le train pour Berlin part lundi à 9 h 30.",
    "vi": "Chuyến tàu đi Berlin khởi hành vào thứ Hai lúc 9:30.",
}
"""By source language; English is the default."""
MAX_TOKENS = 512
"""The longest text, unless the model was trained on shorter ones."""

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Tokens:
    """A text, or the regions of an image: `inputs`, a batch of one (ids int64 [1, T], or vectors float32 [1, R, F] and
    their mask, bool [1, R]), and the name of each token or region."""

    inputs: tuple[Tensor, ...]
    pieces: list[str]


@dataclass(frozen=True)
class Observation:
    """Input of one forward pass: `sequences`, the model's inputs in order, by name; `read`, the sequence of a module if
    it is not the last one; `said`, caption sentences about the sequences."""

    sequences: Mapping[str, Tokens]
    read: Mapping[nn.Module, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's inputs, a batch of one."""
        return tuple(each for sequence in self.sequences.values() for each in sequence.inputs)

    def read_by(self, module: nn.Module) -> str:
        """The name of the sequence that a module reads."""
        return self.read.get(module, [*self.sequences][-1])


def tokens_of(loaded: LoadedText, text: str | None = None) -> Tokens:
    """`text` (None: `DEFAULT_TEXT`, cut for models of shorter texts) as the model's tokens, without the end token.
    Raises `UserError` if there are fewer than two or too many tokens, or the tokenizer is missing or another
    model's."""
    codec = loaded.text_codec()
    limit = min(MAX_TOKENS, loaded.context_length or MAX_TOKENS)
    ids = codec.prompt(DEFAULT_TEXT)[:limit] if text is None else codec.prompt(text)
    _check_length(loaded, len(ids), 2, limit)
    loaded.check_ids(ids)
    return Tokens((torch.tensor([ids]),), codec.pieces(ids))


def _check_length(loaded: Loaded, count: int, least: int, limit: int) -> None:
    if not least <= count <= limit:
        said = f"the text has {count} tokens; {loaded.name} takes {least} to {limit}"
        raise UserError(said, "Give another --text.")


def observed_pair(loaded: LoadedTranslator, text: str | None = None) -> Observation:
    """A sentence `source` (None: the default of the source language, cut for models of short ones), and its translation
    `target` by beam search with the run's settings, without the end token. The model becomes fp32. Raises `UserError`
    if the text is empty or too long, or outputs are not finite."""
    using = translator(loaded, torch.device("cpu"))
    tokenizer, limit = loaded.tokenizer, min(MAX_TOKENS, loaded.longest or MAX_TOKENS) - 1
    language = re.split("[_-]", loaded.run.settings_as(TranslationSettings).data.source)[0]
    default = DEFAULT_SENTENCES.get(language, DEFAULT_SENTENCES["en"])
    ids = tokenizer.encode(default)[:limit] if text is None else tokenizer.encode(one_line(text))
    _check_length(loaded, len(ids), 1, limit)
    source = (*ids, using.end)
    found = using.search([source], loaded.decode)[0][0]
    assert found.hypothesis is not None
    target = (using.begin, *found.hypothesis.tokens)
    said = f"Source: “{tokenizer.decode(ids)}”; its translation, by the network itself: “{found.text}”."
    read, written = (Tokens((torch.tensor([each]),), tokenizer.pieces(each)) for each in (source, target))
    return _encoded_and_decoded(loaded.model, {"source": read, "target": written}, said)


def observed_image(loaded: LoadedCaptioner, number: int = 0, text: str | None = None) -> Observation:
    """A test image of the model's data set, `image`, and a caption of it, `caption` (None: by beam search with the
    run's settings). The model becomes fp32. Raises `UserError` if the images are not those of the training or have no
    such number, or as `observed_pair`."""
    dataset = prepare(loaded.data)
    check_images(loaded, dataset.content_hash, loaded.data.corpus)
    if not 0 <= number < len(dataset.test):
        raise UserError(f"there is no test image {number}", f"They are numbered from 0 to {len(dataset.test) - 1}.")
    using = ImageCaptioner(loaded, torch.device("cpu"))
    tokenizer, pixels = loaded.tokenizer, dataset.image("test", number)
    vectors_RF = dataset.test.batch(np.array([number])).regions[0]
    if text is None:
        found = using.captions(vectors_RF, loaded.decode)[0].hypothesis
        assert found is not None
        ids, author = found.tokens, "by the network itself"
    else:
        ids, author = tuple(tokenizer.encode(one_line(text))), "as it was given"
        _check_length(loaded, len(ids), 1, using.longest - 1)
    target = (using.begin, *ids)
    said = (
        f"Test image {number} of {loaded.data.corpus}; a caption of it, {author}: “{tokenizer.decode(ids)}”; the first "
        f"of its true ones: “{dataset.texts['test'].references[number][0]}”. The image's tokens are its "
        f"{len(vectors_RF)} regions{'' if pixels is None else ', named by row and column'}."
    )
    side = math.isqrt(len(vectors_RF))
    grid = [f"{at // side + 1}-{at % side + 1}" for at in range(len(vectors_RF))]
    vectors_1RF = torch.from_numpy(vectors_RF)[None]
    mask_1R = torch.ones(vectors_1RF.shape[:2], dtype=torch.bool)
    image = Tokens((vectors_1RF, mask_1R), ["region"] * len(grid) if pixels is None else grid)
    caption = Tokens((torch.tensor([target]),), tokenizer.pieces(target))
    return _encoded_and_decoded(loaded.model, {"image": image, "caption": caption}, said)


def check_images(loaded: Loaded, content: str, data_set: str) -> None:
    """Raises `UserError` if this machine's data are not those of the run's training."""
    if content != loaded.run.data_content:
        said = f"{loaded.name} was trained on other images of {data_set} than this machine has"
        raise UserError(said, "Train it again.")


def _encoded_and_decoded(model: EncoderDecoder, sequences: Mapping[str, Tokens], said: str) -> Observation:
    last = "The decoder's tokens are those that it reads, from the begin token on."
    return Observation(sequences, dict.fromkeys(reads_source(model), next(iter(sequences))), (said, last))


def watch(
    loaded: Loaded, inputs: Iterable[Tensor], modules: Iterable[nn.Module] = ()
) -> dict[nn.Module, tuple[tuple[Any, ...], Any]]:
    """Run the model once on its inputs, a batch of one, `undisturbed` and in fp32 (figures should not show the rounding
    of a storage type); the inputs and outputs of the modules, as `recorded`. Raises `UserError` if the outputs are not
    finite."""
    model = loaded.model.float()
    with recorded(modules) as kept, undisturbed(model):
        check_finite(loaded, model(*inputs))
    return kept


def check_finite(loaded: Loaded, output: Any) -> None:
    """Raises `UserError` if a network's output, or the first of several, is not finite."""
    logits: Tensor = output if isinstance(output, Tensor) else output[0]
    if not logits.isfinite().all():
        raise UserError(f"the outputs of {loaded.name} are not finite numbers", "Did its training diverge?")


@dataclass(frozen=True)
class SiteValues:
    """Values of one gate on every token that it reads, fp32 [T, N].

    `where` are columns of a frame: `site`, and for networks that read several sequences `stack`, `part` and `text` (the
    sequence that the gate reads) before it. `kind` is `scalar` (N = 1), `head` (N = heads), `channel`, or `evaluator`,
    the e of an Evaluator-Adjuster Unit. `layer` counts from 1. `ends` is the interval of the values; None if the gate
    states none.
    """

    where: dict[str, str]
    kind: str
    layer: int
    values: Values
    ends: tuple[float, float] | None
    tokens: Sequence[str] = ()


def observed_gates(loaded: Loaded, on: Observation) -> list[SiteValues]:
    """Values of every gate in one forward pass, in the order of `gate_factors`. Raises as `watch`."""
    found = []
    for by, site, kind, values, ends in gate_factors(loaded.model, partial(watch, loaded, on.inputs)):
        text = on.read_by(by)
        where = {"stack": site.stack, "part": site.part, "text": text, "site": site.name}
        tokens = on.sequences[text].pieces
        # A gate that does not depend on its input has the same value for all tokens.
        values_TN = values.expand((1, len(tokens), values.shape[-1]))[0].numpy()
        columns = where if len(on.sequences) > 1 else {"site": site.name}
        found.append(SiteValues(columns, kind, site.layer + 1, values_TN, ends, tokens))
    return found


def layer_streams(model: nn.Module, run: Callable[[], object]) -> list[tuple[str, int, Tensor, Tensor]]:
    """The stack, number (from 1) and residual stream before and after, [B, T, D] each, of every block of a network of
    tokens when `run` runs it once, `undisturbed`. With several streams x is the input that the residual connection
    reads (`ResidualConnection.read`), and y that of the next one or of the final norm. Raises `UserError` (see
    `stacks_of`)."""
    stacks, found = stacks_of(model), list[tuple[str, int, Tensor, Tensor]]()
    ends = {each.site.stack: each for each in model.modules() if isinstance(each, OutputAggregation)}
    with undisturbed(model), recorded(block for blocks in stacks.values() for block in blocks) as kept:
        run()
        for stack, blocks in stacks.items():
            streams, (_, last) = [_read_by(block, kept[block][0][0]) for block in blocks], kept[blocks[-1]]
            is_state = isinstance(last, State)
            streams.append(final_stream(last, ends.get(stack), nn.Identity()) if is_state else _stream(last))
            found += [(stack, layer, *pair) for layer, pair in enumerate(itertools.pairwise(streams), start=1)]
    return found


def _read_by(block: nn.Module, given: Any) -> Tensor:
    connection = next((part for part in block.children() if isinstance(part, ResidualConnection)), None)
    if connection is None:
        return _stream(given)
    if isinstance(given, tuple) and not isinstance(given, State):
        given = State(*given[1])  # as `library.connect.Connected` passes it
    return connection.read(State(given) if isinstance(given, Tensor) else given)


def _stream(given: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The stream in the input, or the output, of another library's block."""
    return given if isinstance(given, Tensor) else given[0]


def compared(x_TD: Tensor, y_TD: Tensor) -> dict[str, NDArray[np.float64]]:
    """The measures of the residual stream before, x, and after, y, [T] each, that `library.values.residual_stream`
    defines."""
    x_TD, y_TD = x_TD.double().cpu(), y_TD.double().cpu()
    cosine_T = F.cosine_similarity(x_TD, y_TD, dim=-1).clamp(-1, 1)
    return {
        "cosine": cosine_T.numpy(),
        "angle": cosine_T.arccos().numpy() / np.pi,
        "update_cosine": F.cosine_similarity(x_TD, y_TD - x_TD, dim=-1).numpy(),
        "norm_ratio": (y_TD.norm(dim=-1) / x_TD.norm(dim=-1)).numpy(),
    }
