"""Every method in a BERT: what its contract is tested on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from method_cases import VARIANTS
from torch import Tensor

from comt_cli.methods import methods
from comt_cli.tasks.settings.bert import BertSettings

NEEDED = {"wider": {"like": "sas", "residual": "post-norm"}}
"""Options without a default."""
MASKED_METHODS = {
    **{name: {"name": name, **NEEDED.get(name, {})} for name in methods("train-bert")},
    **{name: VARIANTS[name] for name in ("two-summaries", "headwise", "post-ln+transponder", "laurel-pa+comt")},
    "grc-post": {"name": "grc", "norm": "post"},
    "eau-post": {"name": "eau", "residual": "post-norm"},
    "eau+grc-post": {"name": "eau+grc", "norm": "post"},
    "eau+grc-reduced": {"name": "wider", "of": {"name": "eau+grc", "norm": "post"}, "like": "post-ln"},
}
# Unlike in every number, and without dropout, which is on in training alone.
SETTINGS = BertSettings(
    width=24, ffn_width=80, layers=2, heads=4, positions=16, dropout=0.0, attention_dropout=0.0, size="tiny"
)
MEDIUM = BertSettings(width=256, ffn_width=512, layers=6, heads=4, size="tiny")
VOCABULARY = 31
_GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, VOCABULARY, (3, 9), generator=_GENERATOR)
TOKENS[1, 6:] = 0
LABELS = torch.randint(1, VOCABULARY, (3, 9), generator=_GENERATOR)


def loss_of_logits(logits_BTV: Tensor) -> Tensor:
    """The mean over all tokens."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), LABELS.flatten())
