"""What comt writes for others computes the same in a process that has transformers and no comt: exported language
models of every method, other exported networks, and wrapped models as `save_pretrained` writes them."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from initialised import initialised, shaken
from method_cases import KINDS, METHODS, SETTINGS, TOKENS, built, wiring_of
from same_bits import Reason, assert_same_bits
from small_networks import SMALL
from test_saved_wrapped_models import CASES, a_model
from test_wrapped_models import TOKENS as WRAPPED_TOKENS
from test_wrapped_models import out
from without_comt import found_below

from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import is_plain_llama
from comt_cli.exchange.loaded import (
    Loaded,
    LoadedCaptioner,
    LoadedClassifier,
    LoadedImageModel,
    LoadedMaskedModel,
    LoadedModel,
)
from comt_cli.library.export import CODE, MOST_LINES, write_huggingface
from comt_cli.library.export_any import write_model
from comt_cli.library.restored import load
from comt_cli.library.wrap import Wrapping, unwrap
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import Wiring

transformers = pytest.importorskip("transformers")

PLAIN = ("pre-ln", "scaled-init", "wider")
WHOLE = ("transponder", "hyper-connections", "lime", "rezero")
"""Those that are also computed in bf16, with other attention, written again and trained."""
NAMES = (
    *(name for name in methods("train-lm") if name != "smear"),  # refused: transformers keeps no previous token
    "headwise",
    "mhc-read-out",
    "two-summaries",
    "muddformer+comt",
    "attention-residuals+transponder",
    "tied",
)
OWN = '''
"""A connection and a gate of a user's own."""
import torch
from torch import Tensor

from comt_cli.layers.gates import Gate
from comt_cli.layers.initialise import Initialised
from comt_cli.layers.learned import Constant
from comt_cli.layers.residual.base import NormedResidual, State

FLOOR = 0.25


def _softened(x: Tensor, by: float) -> Tensor:
    return torch.tanh(x * by) / by


class Softened(NormedResidual, Initialised):
    """y = x + s soft(F(N(x)))."""

    def __init__(self, site, by: float = 2.0) -> None:
        super().__init__(site)
        self.by, self.s, self.unused = by, Constant(1.0), site.norm
        self.register_buffer("shift", torch.zeros(site.width))

    def step(self, state: State, branch) -> State:
        x = state.stream
        return State(x + self.shift + self.s() * _softened(branch(self.norm(x)), self.by), sources=(x,))

    def initialise(self, draw) -> None:
        draw.normal_(self.shift, "shift", 0.1)


class FloorGate(Gate):
    """max(sigmoid(w), floor) a channel."""

    def __init__(self, d_out: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(d_out))

    def down_projection(self) -> None:
        return None

    def values(self, u: Tensor | None) -> dict[str, Tensor]:
        return {"channel": torch.sigmoid(self.w).clamp(min=FLOOR)}

    def initialise(self, draw) -> None:
        draw.normal_(self.w, "w", 1.0)
'''


@pytest.fixture(scope="module")
def own_wiring(tmp_path_factory):
    """The wiring of a user's own file."""
    path = tmp_path_factory.mktemp("own") / "own_parts.py"
    path.write_text(OWN)
    spec = importlib.util.spec_from_file_location("own_parts", path)
    module = sys.modules["own_parts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield Wiring(module.Softened, {"q_proj": module.FloorGate.at, "mlp": module.FloorGate.at})
    del sys.modules["own_parts"]


def language_model(name: str, own: Wiring) -> Any:
    """As `comt export` has it: with its method, so that comt can read it again. A user's own file has none."""
    if name == "own":
        return shaken(built(own)).eval()
    tied = {"tied_embeddings": True, "rope_theta": 500.0, "norm_eps": 1e-3} if name == "tied" else {}
    options = METHODS["comt" if tied else name]
    model = shaken(built(wiring_of(options), SETTINGS.model_copy(update=tied))).eval()
    model.comt_wrapping = Wrapping(options, "paper")
    for number in (each for each in model.buffers() if each.ndim == 0):
        number.fill_(0.625)
    return model


COLOURS = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1), "size": 8}
NETWORKS = [
    ("train-bert", "bert", "post-ln"),
    ("finetune", "classifier", "post-ln"),
    *(
        ("train-resnet", network, name)
        for network in SMALL["train-resnet"].networks
        for name in methods("train-resnet")
    ),
]


def network_of(command: str, network: str, method: str) -> Any:
    small = SMALL[command]
    options = small.methods.get(method, {"name": method})
    settings = small.networks[network]
    model = shaken(initialised(settings, method_from(options).wiring(), 1, **small.dimensions)).eval()
    with torch.no_grad():
        for name, each in model.named_buffers():
            if name.endswith("running_var"):
                each.abs_().add_(0.5)
    return model


def loaded(command: str, model: Any) -> Any:
    if command == "train-resnet":
        return LoadedImageModel(model, "m", "a test", tuple("abcdefghij"), **COLOURS)
    return {"train-bert": LoadedMaskedModel, "finetune": LoadedClassifier}[command](model, "m", "a test")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def languages(root, own_wiring) -> dict[str, Any]:
    """Language models, which are exported too."""
    every = {name: language_model(name, own_wiring) for name in dict.fromkeys((*NAMES, *KINDS, "own"))}
    for name, model in every.items():
        write_huggingface(LoadedModel(model, name, "a test", context_length=128), root / "exported" / name)
    return every


@pytest.fixture(scope="module")
def networks(root) -> dict[str, dict[str, Any]]:
    """The other exported networks, and what they compute."""
    every = {}
    for case in NETWORKS:
        try:
            model = network_of(*case)
        except UserError:  # sites that this network has not
            continue
        name, inputs = f"network/{'-'.join(case)}", [*SMALL[case[0]].batch]
        write_model(loaded(case[0], model), root / name)
        with torch.no_grad():
            every[name] = {"inputs": inputs, "outputs": model(*inputs)}
    return every


def generated(model: Any) -> list[list[int]]:
    ends = {"pad_token_id": 0, "eos_token_id": None, "do_sample": False, "max_new_tokens": 4}
    return model.generate(WRAPPED_TOKENS[:, :4], **ends).tolist()


@pytest.fixture(scope="module")
def wrapped(root) -> dict[str, dict[str, Any]]:
    """The wrapped models, and what they compute."""
    every = {}
    for case in CASES:
        model, name = a_model(case), f"wrapped/{case}"
        config = model.config.to_dict()
        model.save_pretrained(root / name)
        assert model.config.to_dict() == config
        every[name] = {"tokens": WRAPPED_TOKENS, "output": out(model), "auto": "AutoModel"}
        if model.can_generate():
            every[name] |= {"auto": "AutoModelForCausalLM", "generated": generated(model)}
    return every


@pytest.fixture(scope="module")
def found(root, languages, networks, wrapped) -> dict[str, dict[str, Any]]:
    """What one process without comt found of all of them."""
    expected = networks | wrapped
    for name in (*NAMES, "own"):
        model = languages[name]
        with torch.no_grad():
            expected[f"exported/{name}"] = {"tokens": TOKENS, "logits": model(TOKENS)}
            if name in WHOLE:
                expected[f"exported/{name}"]["bf16"] = copy.deepcopy(model).to(torch.bfloat16)(TOKENS)
    torch.save(expected, root / "expected.pt")
    return found_below(root)


@pytest.mark.parametrize("name", [*NAMES, "own"])
def test_every_method_computes_the_same_without_comt(name, root, languages, found) -> None:
    each = found[f"exported/{name}"]
    assert each["class"] == ("LlamaForCausalLM" if name in PLAIN else "ComtForCausalLM")
    assert each["off"] < 1e-5
    assert each["padded_off"] < 1e-5
    assert each["as_cached"]
    assert each["streams"] == SETTINGS.shape().layers + 1
    assert each["learned"] == sum(parameter.numel() for parameter in languages[name].parameters())
    code = root / "exported" / name / CODE
    assert not code.exists() or len(code.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", WHOLE)
def test_other_ways_to_compute_it(name, found) -> None:
    each = found[f"exported/{name}"]
    assert each["eager_off"] < 1e-5
    assert each["back_off"] == 0
    assert each["body_off"] == 0
    assert each["bf16_off"] < 0.03  # a few of bf16's roundings, of 2^-9 each, over four blocks
    assert each["trains"]
    assert each["backend_off"] < 1e-5
    assert "trust_remote_code" in each["without_trust"]


@contextlib.contextmanager
def without_code(folder: Path, aside: Path) -> Iterator[Path]:
    """The folder, as long as its code lies elsewhere."""
    (folder / CODE).rename(aside / CODE)
    try:
        yield folder
    finally:
        (aside / CODE).rename(folder / CODE)


@pytest.mark.parametrize("name", [name for name in dict.fromkeys((*NAMES, *KINDS)) if name not in PLAIN])
def test_an_exported_model_is_read_with_comt_and_without_its_code(name, root, languages, tmp_path) -> None:
    model = languages[name]
    if is_plain_llama(model):
        pytest.skip("is a plain LLaMA")
    with without_code(root / "exported" / name, tmp_path) as folder:
        found = load(folder, LoadedModel).model
    assert_same_bits(found(TOKENS), model(TOKENS), Reason.SAVED)
    assert_same_bits(found.state_dict(), model.state_dict(), Reason.SAVED)


# ---- other networks


def test_networks_compute_the_same_without_comt(found) -> None:
    offs = {name: each["off"] for name, each in found.items() if name.startswith("network/")}
    assert len(offs) > 10
    assert {name: off for name, off in offs.items() if not off < 1e-5} == {}


def test_what_is_not_written_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(UserError, match="has no PreNorm"):
        write_model(loaded("train-bert", network_of("train-bert", "bert", "pre-ln")), tmp_path / "out")
    with pytest.raises(UserError, match="has no ComtGate"):
        write_model(loaded("finetune", network_of("finetune", "classifier", "comt")), tmp_path / "out")
    with pytest.raises(UserError, match="m is a captioner: no other program"):
        write_model(LoadedCaptioner(None, "m", "a test", None, None, None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- wrapped models


@pytest.mark.parametrize("name", CASES)
def test_a_wrapped_model_is_restored_without_comt(name, root, found) -> None:
    each, family = found[f"wrapped/{name}"], CASES[name][0]
    assert each["class"] == f"Comt{family}"
    assert family in each["bases"]
    assert each["off"] < 1e-6
    assert each["odd"] == []
    assert each.get("generates", True)
    assert each["back_off"] == 0
    assert each["copies_off"] == [0, 0]
    assert each["narrow_off"] < 0.1  # some of bf16's roundings, of 2^-9 each
    assert each["without_gradient"] == []
    assert "trust_remote_code" in each["without_trust"]
    assert len((root / "wrapped" / name / CODE).read_text().splitlines()) <= 500


@pytest.mark.parametrize("name", CASES)
def test_a_wrapped_model_is_restored_with_comt_and_without_its_code(name, root, wrapped, tmp_path) -> None:
    with without_code(root / "wrapped" / name, tmp_path) as folder:
        model = load(folder, Loaded).model
    assert_same_bits(out(model), wrapped[f"wrapped/{name}"]["output"], Reason.SAVED)
    model.save_pretrained(tmp_path / "again")
    for file in ("config.json", CODE):
        assert (tmp_path / "again" / file).read_text() == (folder / file).read_text()
    assert isinstance(model, getattr(transformers, CASES[name][0]))
    unwrap(model, discard=True)
    assert_same_bits(out(model), out(plain_of(name)), Reason.SAVED)
    assert type(model) is getattr(transformers, CASES[name][0])


def plain_of(name: str) -> Any:
    return unwrap(a_model(name), discard=True)
