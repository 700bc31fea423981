"""Wrapping and unwrapping of a small network of one's own, and of comt's LLaMA; what is refused, and in what words."""

from __future__ import annotations

import copy
import doctest
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.library import wrap as library
from comt_cli.library.connect import CONNECTIONS, REASONS
from comt_cli.library.gated import Gated, gates_in
from comt_cli.library.wrap import attach, unwrap, wrap
from comt_cli.methods import method_from
from comt_cli.methods.base import residual_connections
from comt_cli.models.build import empty_network, materialise
from comt_cli.tasks.settings.language import ModelSettings

WIDTH, HEADS = 8, 2
X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    head_dim = WIDTH // HEADS

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.up, self.down = Attention(), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.down(torch.relu(self.up(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


QUERY, OUT = {"q_proj": "layers.*.attn.query"}, {"o_proj": "layers.*.attn.out"}
SDPA = {"sdpa": "layers.*.attn.out", **QUERY}
ALL = {
    **QUERY, **OUT, "k_proj": "layers.*.attn.key", "v_proj": "layers.*.attn.value", "up_proj": "layers.*.up",
    "down_proj": "layers.*.down",
}  # fmt: skip


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def llama(**options) -> nn.Module:
    shape = {"width": 16, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_width": 24}
    model = empty_network(ModelSettings(**shape, **options), method_from({"name": "pre-ln"}).wiring(), vocabulary=11)
    materialise(model, torch.device("cpu"), 0)
    return model.eval()


def test_the_examples_of_the_docstring_are_true():
    found = doctest.testmod(library)
    assert found.attempted >= 6
    assert found.failed == 0


@pytest.mark.parametrize(
    ("method", "sites", "modules"),
    [
        ("comt", ALL, ["layers.0.attn.query", "layers.1.attn.query", "layers.2.attn.query"]),
        ({"name": "sdpa-gate", "granularity": "headwise"}, SDPA, None),
        ("transponder-path", {"attention": "layers.*.attn", "mlp": "layers.*.up"}, None),
        ({"name": "eau", "place": "before-o"}, SDPA, None),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gates_at_mapped_sites_leave_the_output_as_it_is(method, sites, modules, dtype):
    model = network().to(dtype)
    if method == "transponder-path":
        sites = {**sites, "mlp": "layers.*.attn.out"}  # any module of equal widths
    before = model(X.to(dtype))
    parts = dict(model.named_modules())
    wrap(model, method, sites=sites)
    assert_same_bits(model(X.to(dtype)), before, Reason.IDENTITY)
    assert all(dict(model.named_modules())[name] is part for name, part in parts.items())
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    if modules is not None:
        assert [*model.comt_wrapping.sites["q_proj"]] == modules
        assert model.comt_wrapping.method["scale"] == 2


def test_gates_multiply_what_they_should():
    """Written out: gamma of every projection, and of what attention mixed, from the same input."""
    model = wrap(network(), {"name": "sdpa-gate", "scale": 1}, sites=SDPA, start="paper")
    plain = network().layers[0].attn
    attention = model.layers[0].attn
    mixed = []
    plain.out.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
    plain(X)
    gamma = torch.sigmoid(X @ attention.out.sdpa_gate.W.T)
    torch.testing.assert_close(attention(X), plain.out(gamma * mixed[0]))
    (placed, *_) = gates_in(model)
    assert (placed.module, placed.reads) == ("layers.0.attn.out", "layers.0.attn.query")
    assert (placed.site.d_in, placed.site.d_out, placed.site.heads) == (WIDTH, WIDTH, HEADS)

    model = wrap(network(), "transponder", sites={"up_proj": "layers.*.up"}, start="paper", rank=2)
    up, read = model.layers[1].up, []
    assert isinstance(up, nn.Linear)
    up.register_forward_hook(lambda _, inputs, output: read.append((inputs[0], output)))
    model(X)
    ((h, z),) = read
    torch.testing.assert_close(z, up.gate(h) * nn.functional.linear(h, up.weight, up.bias))


def test_threads_that_share_a_model_read_their_own_inputs():
    """As `DataParallel` and servers do: both have read before either goes on."""
    model = wrap(network(), {"name": "sdpa-gate", "scale": 1}, sites=SDPA, start="paper").eval()
    inputs = [X, 2 * X]
    expected = [model(x).detach() for x in inputs]
    both = threading.Barrier(2, timeout=30)

    def meet(*_: object) -> None:
        both.wait()

    for layer in model.layers:
        layer.attn.key.register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda x: model(x).detach(), inputs)]
    torch.testing.assert_close(found, expected)


def test_hooks_ties_names_and_copies_stay():
    model = network()
    model.layers[0].attn.key.weight = model.layers[2].attn.value.weight
    calls = []
    model.layers[0].up.register_forward_hook(lambda *_: calls.append(1))
    names = {*model.state_dict()}
    wrap(model, "comt", sites={**QUERY, "up_proj": "layers.*.up"})
    assert names < {*model.state_dict()}
    assert model.layers[0].attn.key.weight is model.layers[2].attn.value.weight
    twin = copy.deepcopy(model)
    twin(X)
    assert calls == [1]
    assert isinstance(twin.layers[0].up, Gated)
    assert twin.layers[0].up.gate.A is not model.layers[0].up.gate.A
    other = attach(network(), model.comt_wrapping)
    assert other.load_state_dict(model.state_dict())
    assert_same_bits(other(X), model(X), Reason.SAVED)


def test_a_network_of_ones_own_is_a_run_at_what_it_computes():
    model = llama()
    tokens = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))
    before, weights = model(tokens), {**model.state_dict()}
    for method in ("comt", "sdpa-gate", "transponder-path", {"name": "transponder", "residual": "laurel-lr"}):
        wrap(model, method)
        torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)  # joined products round otherwise
        made = empty_network(model.settings, method_from(model.comt_wrapping.method).wiring(), vocabulary=11)
        assert made.state_dict().keys() == model.state_dict().keys()
        unwrap(model)
        assert_same_bits(model(tokens), before, Reason.SAME_CALL)
        assert_same_bits(model.state_dict(), weights, Reason.MOVED)


def test_the_connection_of_a_run_is_not_taken_out():
    wiring = method_from({"name": "laurel-lr"}).wiring()
    model = empty_network(llama().settings, wiring, vocabulary=11)
    materialise(model, torch.device("cpu"), 0)
    before = [type(part) for part in model.modules()]
    assert [type(part) for part in unwrap(wrap(model, "comt")).modules()] == before
    with pytest.raises(UserError, match="another residual connection: LaurelLR"):
        wrap(model, "denseformer")


def test_what_gates_do_is_not_dropped_unasked():
    model = wrap(network(), "comt", sites=ALL)
    with torch.no_grad():
        model.layers[1].down.gate.A.add_(1.0)  # behind B = 0, which makes it 1 all the same
    unwrap(copy.deepcopy(model))
    with torch.no_grad():
        model.layers[1].down.gate.B.add_(0.1)
    with pytest.raises(UserError, match=r"1 gates .* down_proj of layers\.1\.down(.|\n)*discard=True"):
        unwrap(model)
    weight = model.layers[1].down.weight
    assert unwrap(model, discard=True).layers[1].down.weight is weight
    assert type(model.layers[1].down) is nn.Linear
    assert not any("gat" in name for part in model.modules() for name in part.__dict__)
    wrap(model, "comt", sites=ALL)
    blocks = wrap(llama(), "laurel-lr")
    with torch.no_grad():
        blocks.blocks[1].mlp_connection.low_rank.B.add_(0.1)
    with pytest.raises(UserError, match="LaurelLR"):
        unwrap(blocks)


def tied() -> Network:
    model = network()
    model.layers[0].attn.query.weight = model.layers[1].attn.query.weight
    return model


def replaced(part: nn.Module) -> Network:
    model = network()
    model.layers[1].attn.query = part
    return model


class Mine(nn.Linear):
    pass


def quantised() -> nn.Linear:
    linear = nn.Linear(WIDTH, WIDTH)
    linear.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=torch.int8), requires_grad=False)
    return linear


def patched() -> Network:
    model = network()
    query = model.layers[1].attn.query
    query.forward = functools.partial(nn.Linear.forward, query)  # as a hook of accelerate's, which would pass gates by
    return model


def parallel() -> nn.Module:
    model = llama()
    for block in model.blocks:
        block.__class__ = type("Parallel", (type(block),), {"forward": lambda _, state: state})
    return model


def gated_llama() -> nn.Module:
    model = wrap(llama(), "comt")
    del model.comt_wrapping  # as a run that was trained with gates
    return model


WRONG = {
    "method": (network, "transpnder", {}, r"'transpnder'(.|\n)*did you mean transponder\?"),
    "no method": (network, {"hidden": 3}, {}, "name: missing"),
    "of maps": (network, "comt-pixel", {}, "comt-pixel: it replaces norms"),
    "option": (network, "comt", {"sites": ALL, "hiden": 3}, r"hiden: unknown key; did you mean hidden\?"),
    "value": (network, "comt", {"sites": ALL, "hidden": 0}, "hidden: .*greater than"),
    "start": (network, "comt", {"sites": ALL, "start": "zero"}, "'zero'(.|\n)*identity or paper"),
    "site": (network, "comt", {"sites": {"qproj": "layers.*.attn.query"}}, r"no site qproj(.|\n)*mean q_proj\?"),
    "unused site": (network, "sdpa-gate", {"sites": {**SDPA, **OUT}}, "no gate at o_proj"),
    "half of sdpa": (network, "sdpa-gate", {"sites": {"sdpa": "layers.*.attn.out"}}, "sdpa also needs q_proj"),
    "pattern": (network, "comt", {"sites": {"q_proj": "layer.*.query"}}, r"matches no module(.|\n)*\*\.attn\.query"),
    "stars": (network, "comt", {"sites": {"q_proj": "*.*.attn.query"}}, r"more than one \*"),
    "named site": (llama, "comt", {"sites": ["q_prj"]}, "sites.*q_proj"),
    "no blocks": (network, "comt", {}, "blocks of Network are unknown; known are (.|\n)*sites="),
    "connection there": (network, "laurel-lr", {}, "their additions cannot be found(.|\n)*LLaMA"),
    "quantised": (lambda: replaced(quantised()), "comt", {"sites": QUERY}, r"layers\.1\.attn\.query .*quantised"),
    "subclass": (lambda: replaced(Mine(8, 8)), "comt", {"sites": QUERY}, r"query \(Mine\).*a subclass of nn\.Linear"),
    "no linear": (lambda: replaced(nn.Identity()), "comt", {"sites": QUERY}, r"query \(Identity\).*not nn\.Linear"),
    "tied": (tied, "comt", {"sites": QUERY}, r"attn\.query would have two gates: it is layers\.0\.attn\.query"),
    "one for two": (network, "comt", {"sites": {**QUERY, "k_proj": QUERY["q_proj"]}}, r"query would have two gates"),
    "patched": (patched, "comt", {"sites": QUERY}, r"layers\.1\.attn\.query .* its forward pass was replaced"),
    "empty mapping": (network, "comt", {"sites": {}}, "the mapping has no q_proj"),
    "pattern's type": (network, "comt", {"sites": {"q_proj": ["a"]}}, r"q_proj: \['a'\] is not a module name"),
    "site's type": (network, "comt", {"sites": {3: "a"}}, "no site 3"),
    "no data": (network, "comt", {"sites": QUERY, "hidden": object()}, "comt: Object of type object(.|\n)*numbers"),
    "no name": (network, None, {}, "name: missing"),
    "own site": (llama, "comt", {"sites": {"q_proj": "blocks.*.mlp.down"}}, "blocks.0.mlp.down .* has no q_proj"),
    "other block": (parallel, "laurel-lr", {}, "blocks of Llama are unknown or patched"),
    "twice": (lambda: wrap(network(), "comt", sites=QUERY), "comt", {"sites": OUT}, "wrapped already(.|\n)*residual="),
    "meta": (lambda: network().to("meta"), "comt", {"sites": QUERY}, "on the meta device"),
    "scale": (network, "comt", {"sites": QUERY, "scale": 1}, "gate at q_proj cannot start(.|\n)*scale=2"),
    "no identity": (llama, "hyper-connections", {}, 'HyperConnection, cannot start(.|\n)*start="paper"'),
    "norms": (llama, "dyt", {}, "dyt: it replaces norms"),
    "embedding": (llama, "embedding-norm", {}, "the start of the stream"),
    "gated norms": (llama, "gated-norm", {}, "gated-norm: it replaces norms"),
    "peri-ln": (llama, "peri-ln", {}, "the start of the stream"),
    "hybrid-norm": (llama, "hybrid-norm", {}, "it normalises queries, keys and values"),
    "exclusive attention": (llama, "xsa", {}, "xsa: it changes attention"),
    "values": (llama, "resformer", {}, "inside of other blocks"),
    "token ids": (llama, "value-embeddings", {}, "reads token ids in blocks"),
    "widths": (llama, {"name": "wider", "like": "comt"}, {}, "changes widths"),
    "nothing": (llama, "pre-ln", {}, "no gates and no other residual connection"),
    "gated run": (gated_llama, "comt", {}, "gates already"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_and_nothing_is_changed(case):
    make, method, options, message = WRONG[case]
    model = make()
    before = [(name, type(part)) for name, part in model.named_modules()]
    with pytest.raises(UserError, match=message):
        wrap(model, method, **options)
    assert [(name, type(part)) for name, part in model.named_modules()] == before


@pytest.mark.parametrize("name", [*REASONS])
def test_connections_that_do_more_than_add_are_refused_by_name(name):
    given = {"name": "comt", "residual": name} if name != "grc" else {"name": "grc", "norm": "post"}
    with pytest.raises(UserError, match=rf"residual connection {name} .* cannot replace .*: {REASONS[name]}"):
        wrap(llama(), given, start="paper")


def test_every_connection_is_decided_about():
    assert {*CONNECTIONS} | {*REASONS} == {*residual_connections()}


def test_what_is_no_model_or_not_wrapped_is_refused():
    for function in (unwrap, lambda model: wrap(model, "comt")):
        with pytest.raises(UserError, match=r"'gpt2' is not a torch\.nn\.Module"):
            function("gpt2")
    with pytest.raises(UserError, match="Network is not wrapped"):
        unwrap(network())
