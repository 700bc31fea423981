"""Every method of language models, as the program finds it, and variants that differ in kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from initialised import initialised
from torch import Tensor

from comt_cli.layers.projection import Projections
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import Wiring
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.language import ModelSettings

NEEDED = {"wider": {"like": "transponder"}}
"""Options without a default."""
VARIANTS = {
    "post-ln+comt": {"name": "comt", "residual": "post-norm"},
    "post-ln+transponder": {"name": "transponder", "residual": "post-norm"},
    "laurel-pa+comt": {"name": "comt", "residual": "laurel-pa"},
    "laurel-rw-sigmoid": {"name": "laurel-rw", "bound": "sigmoid"},
    "grc-sublayer": {"name": "grc", "reads": "sublayer"},
    "grc-both": {"name": "grc", "reads": "both"},
    "headwise": {"name": "sdpa-gate", "granularity": "headwise"},
    "headwise-of-12": {"name": "sdpa-gate", "granularity": "headwise", "reads": 12},
    "elementwise-of-sixteenth": {"name": "sdpa-gate", "reads": 0.0625},
    "all-gate": {"name": "full-rank-gate", "sites": "all"},
    "layer-scalar": {"name": "transponder", "granularity": "scalar"},
    "layer-channel": {"name": "transponder", "granularity": "channel"},
    "path-channel": {"name": "transponder-path", "granularity": "channel"},
    "two-summaries": {"name": "transponder", "separate_summaries": True},
    "fixed-sigmoid": {"name": "transponder", "learnable_sigmoid": False},
    "static-fixed-sigmoid": {"name": "transponder-static", "learnable_sigmoid": False},
    "scaled-init-of-4": {"name": "scaled-init", "additions": 4},
    "scaled-depth": {"name": "scaled", "scale": "depth"},
    "scaled-learned": {"name": "scaled", "scale": "learned"},
    "hyper-static": {"name": "hyper-connections", "dynamic": False, "n": 2},
    "hyper+comt": {"name": "comt", "residual": "hyper-connections"},
    "mhc-random": {"name": "mhc", "start": "random", "n": 2},
    "mhc-read-out": {"name": "mhc", "read_out": "learned"},
    "attention-residuals-blocks": {"name": "attention-residuals", "blocks": 3},
    "attention-residuals+transponder": {"name": "transponder", "residual": "attention-residuals"},
    "start-lambdas-graded": {"name": "start-lambdas", "start": "graded", "normalised": False},
    "muddformer+comt": {"name": "comt", "residual": "mudd"},
    "hybrid-norm-starred": {"name": "hybrid-norm", "starred": True},
    "2-dca": {"name": "deep-cross-attention", "last": 2},
    "deep-cross-attention+comt": {"name": "comt", "residual": "deep-cross-attention"},
    "mudd-of-last-2": {"name": "muddformer", "last": 2},
    "skip-weights": {"name": "skip-gates", "gate": "weight"},
    "derf": {"name": "dyt", "function": "erf"},
    "resformer-learned": {"name": "resformer", "learned": True},
    "embedding-norm-of-comt": {"name": "embedding-norm", "of": "comt"},
    "embedding-norm-of-hyper-connections": {"name": "embedding-norm", "of": "hyper-connections"},
    "embedding-norm-of-smear": {"name": "embedding-norm", "of": "smear"},
    "wider-flops": {"name": "wider", "like": {"name": "full-rank-gate"}, "equal": "flops"},
}
METHODS = {name: {"name": name, **NEEDED.get(name, {})} for name in methods("train-lm")} | VARIANTS
KINDS = (
    *("comt", "transponder", "two-summaries", "transponder-static", "transponder-path", "full-rank-gate", "headwise"),
    *("eau", "pre-ln", "post-ln+transponder", "deepnorm", "mix-ln", "layernorm-scaling", "sandwich-ln", "dyt"),
    *("embedding-norm", "scaled-learned", "rezero", "highway", "grc-both", "sas", "laurel-rw", "laurel-lr"),
    *("laurel-rw-lr", "laurel-pa+comt", "keel", "start-lambdas", "denseformer", "hyper-connections", "hyper-static"),
    *("mhc", "mhc-read-out", "mhc-lite", "siamese-norm", "attention-residuals-blocks", "delta-attention-residuals"),
    *("prores", "resformer-learned", "svformer", "identity-hc", "muddformer", "lime", "muddformer+comt"),
    *("deep-cross-attention", "value-embeddings", "backout", "skip-gates"),
    *("headwise-of-12", "derf", "gated-norm", "xsa", "hybrid-norm", "hybrid-norm-starred"),
)
"""For each class of gate, residual connection and norm a method that has it (`test_kinds_are_complete`)."""
WIRINGS = (
    *("pre-ln", "comt", "two-summaries", "transponder-path", "headwise", "eau", "dyt", "rezero", "sas"),
    *("post-ln+transponder", "laurel-pa+comt", "prores", "resformer-learned", "hyper+comt", "siamese-norm"),
    *("attention-residuals-blocks", "muddformer+comt", "deep-cross-attention", "value-embeddings"),
    *("smear", "embedding-norm-of-smear", "headwise-of-12", "hybrid-norm", "xsa"),
)
"""A method for each way in which a wiring changes how a model is run: gates of every form and place, norms, an entry,
shared parameters and buffers, and every field of a state. For tests of that, rather than of the methods."""
# Small, with depth enough for Mix-LN's quarter, heads that share keys, and a width that no power of two hides.
SETTINGS = ModelSettings(size="tiny", width=48, ffn_width=88, layers=4, heads=4, kv_heads=2)
VOCABULARY = 61
TOKENS = torch.randint(VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(0))

each_wiring = pytest.mark.parametrize("options", [METHODS[name] for name in WIRINGS], ids=WIRINGS)


def wiring_of(options: dict) -> Wiring:
    return method_from(options).wiring()


def built(wiring: Wiring, settings: ModelSettings = SETTINGS, seed: int = 1) -> Llama:
    return initialised(settings, wiring, seed, vocabulary=VOCABULARY)


def projections(model: Llama) -> list[tuple[str, Projections]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, Projections)]


def loss_of_logits(logits: Tensor) -> Tensor:
    """Of the tokens that follow in `TOKENS`."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), TOKENS[:, 1:].reshape(-1))


def loss_of(model: Llama) -> Tensor:
    return loss_of_logits(model(TOKENS))
