"""Every method in an encoder-decoder: what its contract is tested on. For language models see `method_cases`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from method_cases import VARIANTS as LANGUAGE_VARIANTS
from method_cases import wiring_of
from torch import Tensor

from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import Wiring
from comt_cli.models.build import empty_network
from comt_cli.models.transformer import Transformer
from comt_cli.tasks.settings.transformer import ENCODER_DECODER_SITES, TransformerSettings

NEEDED = {"wider": {"like": "sas", "residual": "post-norm"}}
"""Options without a default."""
VARIANTS = {
    name: options
    for name, options in LANGUAGE_VARIANTS.items()
    if (method := method_from(options)).fits(ENCODER_DECODER_SITES) and not method.absent(ENCODER_DECODER_SITES)
} | {
    "grc-ffn": {"name": "grc", "at": "ffn"},
    "grc-post": {"name": "grc", "norm": "post", "reads": "both"},
    "eau-before-o": {"name": "eau", "place": "before-o"},
    "post-ln+eau": {"name": "eau", "residual": "post-norm", "rank": 0.1},
    "eau+grc-post": {"name": "eau+grc", "norm": "post", "at": "ffn", "place": "before-o"},
    "sas-single-layer": {"name": "sas", "gate": "single-layer"},
    "sas-free": {"name": "sas", "gamma": "free", "alpha_bias": -3.0, "beta_bias": -3.0},
    "comt-encoder": {"name": "comt", "sites": "encoder"},
    "transponder-decoder": {"name": "transponder", "sites": "decoder", "residual": "post-norm"},
    "transponder-static-cross": {"name": "transponder-static", "sites": "cross"},
    "full-rank-gate-mixed": {"name": "full-rank-gate", "sites": ["o_proj", "cross.q_proj", "encoder.up_proj"]},
    "wider-than-pre-ln": {"name": "wider", "like": "grc"},
}
PAIR_METHODS = {
    name: {"name": name, **NEEDED.get(name, {})}
    for name, method in methods().items()
    if method.fits(ENCODER_DECODER_SITES)
} | VARIANTS
# Unlike in every number, and without dropout, which is on in training alone.
SETTINGS = TransformerSettings(
    size="nano", width=24, ffn_width=40, encoder_layers=2, decoder_layers=3, heads=4, dropout=0.0
)
MEDIUM = TransformerSettings(size="nano", width=256, ffn_width=512, encoder_layers=2, decoder_layers=2)
VOCABULARY = 31
_GENERATOR = torch.Generator().manual_seed(0)
SOURCE = torch.randint(1, VOCABULARY, (3, 7), generator=_GENERATOR)
TARGET = torch.randint(1, VOCABULARY, (3, 6), generator=_GENERATOR)
SOURCE[1, 4:] = 0
SOURCE[2, 6:] = 0
TARGET[0, 4:] = 0


def pair_model(
    method: dict | Wiring, settings: TransformerSettings = SETTINGS, seed: int = 1, *, shaken: bool = False
) -> Transformer:
    """A model whose every parameter was initialised; what was not stays NaN. `shaken` is as if trained a little, in
    float64: gates far from their start, gains that are not one."""
    wiring = method if isinstance(method, Wiring) else wiring_of(method)
    model = empty_network(settings, wiring, vocabulary=VOCABULARY).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    initialise(model, seed)
    if shaken:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.double().parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    return model


def pair_loss(model: Transformer, source_BS: Tensor = SOURCE, target_BT: Tensor = TARGET) -> Tensor:
    """The mean over the targets that are no padding."""
    return loss_of_logits(model(source_BS, target_BT), target_BT)


def loss_of_logits(logits_BTV: Tensor, target_BT: Tensor = TARGET) -> Tensor:
    """The mean over the targets that are no padding, each predicted from those before it."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), target_BT[:, 1:].flatten(), ignore_index=0)
