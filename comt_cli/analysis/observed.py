"""Inputs that a network of tokens is observed on: a text, a sentence and its translation, an image and its caption;
and one forward pass with observers on some of its modules.

Shapes: T tokens, R regions of an image, F features.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.data.prepare import prepare
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded, LoadedCaptioner, LoadedText, LoadedTranslator
from comt_cli.generation.caption import ImageCaptioner, Seen
from comt_cli.generation.transcript import one_line
from comt_cli.generation.translate import Options, translator
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.tasks.settings.translation import TranslationSettings

DEFAULT_TEXT = "Once a king left his castle by the sea."
"""Of the papers' kind: content words, function words, punctuation."""
DEFAULT_SENTENCES = {
    "en": "The train to Berlin leaves on Monday at 9:30.",
    "de": "Der Zug nach Berlin fährt am Montag um 9:30 Uhr ab.",
    "fr": "Le train pour Berlin part lundi à 9 h 30.",
    "vi": "Chuyến tàu đi Berlin khởi hành vào thứ Hai lúc 9:30.",
}
"""Default sentences of translators by source language; for any other language the English one."""
MAX_TOKENS = 512
"""Longest text, unless the model was trained on shorter ones."""


@dataclass(frozen=True)
class Tokens:
    """A text, or the regions of an image, as model input.

    Attributes:
        inputs: a batch of one: ids int64 [1, T], or vectors float32 [1, R, F] and their mask, bool [1, R].
        pieces: the name of each token or region.
    """

    inputs: tuple[Tensor, ...]
    pieces: list[str]


@dataclass(frozen=True)
class Observation:
    """The input of one observed forward pass.

    Attributes:
        sequences: the model's inputs in their order, by name.
        read: name of the sequence that a module reads, where it is not the last one.
        said: sentences for a caption that state what the sequences are.
    """

    sequences: Mapping[str, Tokens]
    read: Mapping[nn.Module, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's inputs, a batch of one."""
        return tuple(each for sequence in self.sequences.values() for each in sequence.inputs)

    def read_by(self, module: nn.Module) -> str:
        """Name of the sequence whose tokens a module of the network reads."""
        return self.read.get(module, [*self.sequences][-1])


def tokens_of(loaded: LoadedText, text: str | None = None) -> Tokens:
    """`text` (None: `DEFAULT_TEXT`, cut for models of shorter texts) as the model's tokens, with the special token that
    its texts begin with, but not the one that ends them. Raises `UserError` where it has fewer than two tokens or too
    many, or the model's tokenizer is missing or another model's."""
    codec = loaded.text_codec()
    limit = min(MAX_TOKENS, loaded.context_length or MAX_TOKENS)
    ids = codec.prompt(DEFAULT_TEXT)[:limit] if text is None else codec.prompt(text)
    if not 2 <= len(ids) <= limit:
        raise UserError(f"the text has {len(ids)} tokens; {loaded.name} takes 2 to {limit}", "Give another --text.")
    if max(ids) >= loaded.model.vocabulary:
        raise UserError(
            f"{loaded.name}: its tokenizer makes the id {max(ids)}, but the model has {loaded.model.vocabulary} tokens"
        )
    return Tokens((torch.tensor([ids]),), codec.pieces(ids))


def observed_pair(loaded: LoadedTranslator, text: str | None = None) -> Observation:
    """A sentence (None: that of the source language, cut for models of short ones), `source`, and its translation by
    beam search with the run's settings, `target`, from the begin token to the last before the end. The model becomes
    fp32. Raises `UserError` where the text is empty or too long, or outputs are not finite."""
    loaded.model.float()
    using = translator(loaded, torch.device("cpu"))
    tokenizer, limit = loaded.tokenizer, min(MAX_TOKENS, loaded.longest or MAX_TOKENS) - 1
    language = re.split("[_-]", loaded.run.settings_as(TranslationSettings).data.source)[0]
    default = DEFAULT_SENTENCES.get(language, DEFAULT_SENTENCES["en"])
    ids = tokenizer.encode(default)[:limit] if text is None else tokenizer.encode(one_line(text))
    if not 1 <= len(ids) <= limit:
        raise UserError(f"the text has {len(ids)} tokens; {loaded.name} takes 1 to {limit}", "Give another --text.")
    source = (*ids, using.end)
    found = using.search([source], Options(loaded.decode))[0][0]
    assert found.hypothesis is not None
    target = (using.begin, *found.hypothesis.tokens)
    said = f"Source: “{tokenizer.decode(ids)}”; its translation, by the network itself: “{found.text}”."
    read, written = (Tokens((torch.tensor([each]),), tokenizer.pieces(each)) for each in (source, target))
    return _encoded_and_decoded(loaded.model, {"source": read, "target": written}, said)


def observed_image(loaded: LoadedCaptioner, number: int = 0, text: str | None = None) -> Observation:
    """A test image of the model's data set, `image`, and a caption of it (None: by beam search with the run's
    settings), `caption`, from the begin word to the last before the end. The model becomes fp32.

    Raises:
        UserError: the images are missing, or not those of the training; there is no image of that number; the text is
            empty or too long; outputs are not finite.
    """
    dataset = prepare(loaded.data)
    if dataset.content_hash != loaded.run.data_content:
        raise other_images(loaded.name, loaded.data.corpus)
    if not 0 <= number < len(dataset.test):
        raise UserError(f"there is no test image {number}", f"They are numbered from 0 to {len(dataset.test) - 1}.")
    using = ImageCaptioner(loaded, torch.device("cpu"))
    tokenizer, pixels = loaded.tokenizer, dataset.image("test", number)
    vectors_RF = dataset.test.batch(np.array([number])).regions[0]
    if text is None:
        ids = using.captions(Seen(vectors_RF, pixels), loaded.decode)[0].hypothesis.tokens
    else:
        ids = tuple(tokenizer.encode(one_line(text)))
        if not 1 <= len(ids) <= using.longest - 1:
            limit = f"{loaded.name} takes 1 to {using.longest - 1}"
            raise UserError(f"the caption has {len(ids)} words; {limit}", "Give another --text.")
    target = (using.begin, *ids)
    author = "by the network itself" if text is None else "as it was given"
    said = (
        f"Test image {number} of {loaded.data.corpus}; a caption of it, {author}: “{tokenizer.decode(ids)}”; the first "
        f"of its true ones: “{dataset.texts['test'].references[number][0]}”. The image's tokens are its "
        f"{len(vectors_RF)} regions{'' if pixels is None else ', named by row and column'}."
    )
    side = math.isqrt(len(vectors_RF))
    grid = [f"{at // side + 1}-{at % side + 1}" for at in range(len(vectors_RF))]  # by row and column
    vectors_1RF = torch.from_numpy(vectors_RF)[None]
    mask_1R = torch.ones(vectors_1RF.shape[:2], dtype=torch.bool)
    image = Tokens((vectors_1RF, mask_1R), ["region"] * len(grid) if pixels is None else grid)
    caption = Tokens((torch.tensor([target]),), tokenizer.pieces(target))
    return _encoded_and_decoded(loaded.model, {"image": image, "caption": caption}, said)


def other_images(name: str, data_set: str) -> UserError:
    """The error where a model was trained on other images than those of this machine."""
    return UserError(f"{name} was trained on other images of {data_set} than those that are here", "Train it anew.")


def _encoded_and_decoded(model: EncoderDecoder, sequences: Mapping[str, Tokens], said: str) -> Observation:
    """A source and a target, by name: the encoder reads the source, and so do cross-attention's keys and values."""
    of_source = [*model.encoder.modules(), *(block.cross.key_value for block in model.decoder_blocks())]
    last = "The decoder's tokens are those that it reads, from the begin token on."
    return Observation(sequences, dict.fromkeys(of_source, next(iter(sequences))), (said, last))


Observer = Callable[[Any, Any], None]
"""Called with a module's first input and its output."""


@contextlib.contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, Callable[..., None]]]) -> Iterator[None]:
    """In this context each module calls its forward hook, which changes nothing: `hook(module, inputs, output)`."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watch(loaded: Loaded, inputs: Iterable[Tensor], observers: Iterable[tuple[nn.Module, Observer]] = ()) -> None:
    """Run the model once on its inputs, a batch of one, without gradients and in fp32 (values in a figure should not
    show the rounding of a storage type), and call each observer as its module runs. Raises `UserError` where the
    outputs are not finite."""
    model = loaded.model.float().eval()

    def show(observer: Observer, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        observer(inputs[0], output)

    with hooked((module, partial(show, observer)) for module, observer in observers), torch.no_grad():
        logits_BTV = model(*inputs)
    if not logits_BTV.isfinite().all():
        raise UserError(f"the outputs of {loaded.name} are not finite numbers", "Did its training diverge?")
