"""Small networks and a batch for every task, and every method that fits its models: what the contract is tested on.

A task joins the contract suite with an entry in `SMALL`. Its methods are found as the program finds them; those of the
two tasks that tests compute with by name are in `method_cases` and `image_method_cases`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import image_method_cases as images
import method_cases as language
import torch
import torch.nn.functional as F
from initialised import initialised, shaken
from same_bits import Reason, same_bits
from torch import Tensor

from comt_cli.layers.gates import ComtGate
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import Wiring
from comt_cli.models.base import Model
from comt_cli.models.build import wiring_of
from comt_cli.models.transformer import Transformer
from comt_cli.tasks import task_of
from comt_cli.tasks.base import ENCODER_DECODER_SITES
from comt_cli.tasks.settings.captioning import CaptionerSettings
from comt_cli.tasks.settings.images import ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.tasks.settings.masked_lm import BertSettings
from comt_cli.tasks.settings.translation import TransformerSettings

Batch = tuple[Tensor, ...]
NEEDED = {"wider": {"like": "sas", "residual": "post-norm"}}
"""Options without a default."""


def by_name(command: str) -> dict[str, dict[str, Any]]:
    return {name: {"name": name, **NEEDED.get(name, {})} for name in methods(command)}


# ---- translators and captioners: unlike in every number, and without dropout, which is on in training alone

PAIR_METHODS = (
    by_name("train-mt")
    | {
        name: options
        for name, options in language.VARIANTS.items()
        if (method := method_from(options)).fits(ENCODER_DECODER_SITES) and not method.absent(ENCODER_DECODER_SITES)
    }
    | {
        "eau-before-o": {"name": "eau", "place": "before-o"},
        "eau+grc-post": {"name": "eau+grc", "norm": "post", "at": "ffn", "place": "before-o"},
        "sas-single-layer": {"name": "sas", "gate": "single-layer"},
        "sas-free": {"name": "sas", "gamma": "free", "alpha_bias": -3.0, "beta_bias": -3.0},
        "transponder-static-cross": {"name": "transponder-static", "sites": "cross"},
        "full-rank-gate-mixed": {"name": "full-rank-gate", "sites": ["o_proj", "cross.q_proj", "encoder.up_proj"]},
    }
)
SHAPE = {"size": "nano", "width": 24, "ffn_width": 40, "encoder_layers": 2, "decoder_layers": 3, "heads": 4}
PAIRS = TransformerSettings(**SHAPE, dropout=0.0)
CAPTIONER = CaptionerSettings(**SHAPE, dropout=0.0, region_dropout=0.0, region_positions="learned")
VOCABULARY = 31
_DRAWS = torch.Generator().manual_seed(0)
SOURCE, TARGET = (torch.randint(1, VOCABULARY, (3, length), generator=_DRAWS) for length in (7, 6))
SOURCE[1, 4:] = SOURCE[2, 6:] = TARGET[0, 4:] = 0
REGIONS = torch.randn(3, 7, 10, generator=_DRAWS)
MASK = torch.ones(3, 7, dtype=torch.bool)
MASK[1, 4:] = False


def other_tokens(tokens: Tensor) -> Tensor:
    """Others in every place that is no padding."""
    return torch.where(tokens > 0, tokens % (VOCABULARY - 1) + 1, 0)


def pair_model(
    method: dict | Wiring, settings: TransformerSettings = PAIRS, seed: int = 1, *, trained: bool = False
) -> Transformer:
    """`trained`: as if a little, in float64."""
    wiring = method if isinstance(method, Wiring) else wiring_of(method)
    model = initialised(settings, wiring, seed, vocabulary=VOCABULARY)
    return shaken(model.double()) if trained else model


def pair_loss(logits_BTV: Tensor, target_BT: Tensor = TARGET) -> Tensor:
    """The mean over the targets that are no padding, each predicted from those before it."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), target_BT[:, 1:].flatten(), ignore_index=0)


# ---- BERTs

MASKED_METHODS = {
    **by_name("train-bert"),
    "post-ln+transponder": language.VARIANTS["post-ln+transponder"],
    "laurel-pa+comt": language.VARIANTS["laurel-pa+comt"],
    "headwise": language.VARIANTS["headwise"],
    "eau+grc-reduced": {"name": "wider", "of": {"name": "eau+grc", "norm": "post"}, "like": "post-ln"},
}
BERT = BertSettings(
    width=24, ffn_width=80, layers=2, heads=4, positions=16, dropout=0.0, attention_dropout=0.0, size="tiny"
)
TOKENS = torch.randint(1, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
TOKENS[1, 6:] = 0
SEGMENTS = torch.zeros_like(TOKENS)
SEGMENTS[:, 4:] = 1


@dataclass(frozen=True)
class Small:
    """What the contract needs of a task.

    Attributes:
        networks: settings of its smallest models, by name; the first one is tested where one is enough.
        dimensions: what `build` takes from the data.
        batch: inputs of three samples; `other` makes another batch of the same shape.
        loss: of the model's output for the batch.
        methods: every method by name, with variants that differ in kind.
        tested: those of them that this task answers for: all that no task before it has, or a few kinds of wiring.
        bf16_error: by how much outputs in bf16 may be off, relative. Eight bits of mantissa, rounded some fifty times.
        medium: settings of a model with draws enough to see how its numbers are spread at the start.
    """

    networks: Mapping[str, Any]
    dimensions: Mapping[str, int]
    batch: Batch
    other: Callable[..., Batch]
    loss: Callable[[Tensor], Tensor]
    methods: Mapping[str, dict[str, Any]]
    tested: tuple[str, ...]
    bf16_error: float = 0.05
    medium: Any = None


SMALL = {
    "train-lm": Small(
        {"llama": language.SETTINGS},
        {"vocabulary": language.VOCABULARY},
        (language.TOKENS,),
        lambda tokens: ((tokens + 7) % language.VOCABULARY,),
        language.loss_of_logits,
        language.METHODS,
        (*methods("train-lm"), *(name for name in (*language.KINDS, "2-dca") if name in language.VARIANTS)),
        medium=ModelSettings(size="tiny", width=256, ffn_width=512, layers=6, heads=4),
    ),
    "train-resnet": Small(
        images.NETWORKS,
        {"classes": images.CLASSES},
        (images.IMAGES,),
        lambda maps: (maps * 2 - 1,),
        lambda logits: F.cross_entropy(logits.float(), images.LABELS),
        images.IMAGE_METHODS,
        tuple(dict.fromkeys((*methods("train-resnet"), *images.IMAGE_KINDS))),
        0.1,  # the norms divide by what three images of few pixels vary
        ResNetSettings(size="resnet18", width=32, blocks=(1, 2)),
    ),
    "train-mt": Small(
        {"transformer": PAIRS},
        {"vocabulary": VOCABULARY},
        (SOURCE, TARGET),
        lambda source, target: (source, other_tokens(target)),
        pair_loss,
        PAIR_METHODS,
        ("transponder-path", "headwise", "post-ln+transponder", "laurel-pa+comt", "sas", "dyt", "eau+grc-post"),
    ),
    "train-caption": Small(
        {"captioner": CAPTIONER},
        {"vocabulary": VOCABULARY, "regions": 9, "features": 10},
        (REGIONS, MASK, TARGET),
        lambda regions, *rest: (regions * 2 - 1, *rest),
        pair_loss,
        by_name("train-caption"),
        ("comt", "sas"),
    ),
    "train-bert": Small(
        {"bert": BERT},
        {"vocabulary": VOCABULARY},
        (TOKENS,),
        lambda tokens: (other_tokens(tokens),),
        lambda logits: F.cross_entropy(logits.flatten(0, 1).float(), TOKENS.flatten()),
        MASKED_METHODS,
        ("headwise", "post-ln+transponder", "laurel-pa+comt", "dyt", "eau+grc-reduced"),
    ),
    "finetune": Small(
        {"classifier": BERT},
        {"vocabulary": VOCABULARY, "classes": 5},
        (TOKENS, SEGMENTS),
        lambda tokens, segments: (other_tokens(tokens), 1 - segments),
        lambda logits: F.cross_entropy(logits.float(), torch.tensor([4, 0, 2])),
        MASKED_METHODS,
        ("sas", "post-ln+transponder"),
    ),
}


class Case(NamedTuple):
    """A method on a small network of a task."""

    command: str
    network: str
    method: str

    @property
    def small(self) -> Small:
        return SMALL[self.command]

    @property
    def batch(self) -> Batch:
        return self.small.batch

    @property
    def options(self) -> dict[str, Any]:
        return self.small.methods[self.method]

    def built(self, seed: int = 1, settings: Any = None) -> Model:
        """The model; what was not initialised is NaN."""
        settings = settings or self.small.networks[self.network]
        return initialised(settings, wiring_of(self.options), seed, **self.small.dimensions)

    def loss(self, model: Model, batch: Batch | None = None) -> Tensor:
        return self.small.loss(model(*(self.batch if batch is None else batch)))


CASES = [
    Case(command, network, name)
    for command, small in SMALL.items()
    for number, network in enumerate(small.networks)
    for name in (small.tested if number == 0 else ("comt-pixel", "comt-sliding-window", "sas-free"))
]


def future_leaks(logits_of: Callable[[Tensor], Tensor], tokens_BT: Tensor, vocabulary: int) -> list[int]:
    """The positions t up to which logits change, by any bit, when all tokens behind t do: each t in rows of its own.

    No tolerance: shapes stay equal, so the same instructions run on the same numbers.
    """
    rows, last = len(tokens_BT), tokens_BT.shape[1] - 1
    whole = tokens_BT.repeat(last, 1)
    is_later = torch.arange(last + 1) > torch.arange(last).repeat_interleave(rows)[:, None]
    with torch.no_grad():
        before = logits_of(whole).split(rows)
        after = logits_of(torch.where(is_later, whole % (vocabulary - 1) + 1, whole)).split(rows)
    return [t for t in range(last) if not same_bits(after[t][:, : t + 1], before[t][:, : t + 1], Reason.CAUSAL)]


class PoolingGate(ComtGate):
    """A gate that must never be published: it looks at the mean over the sequence, as squeeze-and-excitation does."""

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        return super().values(u_Tr.mean(dim=1, keepdim=True).expand_as(u_Tr))


pooling_gate = functools.partial(PoolingGate.at, hidden=2)


@functools.cache
def plain_model(command: str, network: str) -> Model:
    """That of the method that changes nothing, made once: nobody may change it."""
    small, wiring = SMALL[command], wiring_of({"name": task_of(command).plain_method})
    return initialised(small.networks[network], wiring, 1, **small.dimensions)
