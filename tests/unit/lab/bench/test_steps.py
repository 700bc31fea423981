"""`comt bench step`, from the command line to the files, of every task whose steps are measured."""

from __future__ import annotations

import pytest
import torch

from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements
from comt_cli.lab.bench import peers, subjects, variants
from comt_cli.lab.bench.failures import Failed
from comt_cli.lab.bench.peers import PEERS, import_peer, torchvision_resnet
from comt_cli.lab.bench.record import pages
from comt_cli.lab.bench.shapes import RESNETS, Shape, bert, llama, resnet
from comt_cli.lab.bench.step import run_step_benchmark
from comt_cli.lab.bench.subjects import (
    CONNECTIONS,
    GRAPHS,
    IMAGES,
    LANGUAGE,
    MASKED_LM,
    NONDETERMINISTIC,
    SUBJECTS,
    TRANSLATION,
    Base,
    Subject,
    check_variants,
    needs_cuda,
)
from comt_cli.lab.bench.variants import Unavailable, Variants, is_compiled, nondeterministic
from comt_cli.models.build import model_of
from comt_cli.models.flops import parameter_count
from comt_cli.models.kernels import use_kernels
from comt_cli.training.objective import CAPTURED

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.page)
WITHOUT_MATRICES = ("keel", "lambdas", "denseformer", "resformer", "siamese", "attnres", "blockattnres", "dca")
"""Connections of learned scalars and vectors, of which FLOPs count nothing."""
EITHER = (LANGUAGE, TRANSLATION)
"""One whose networks are compiled, and one whose are not."""
either_subject = pytest.mark.parametrize("subject", EITHER, ids=lambda subject: subject.page)
FILES = ("csv", "md", "png", "pdf", "txt", "tex")


def tiny(subject: Subject) -> Shape:
    return subject.shapes[subject.cpu_sizes[0]]


def here(subject: Subject) -> list[str]:
    """The variants that there are on this machine."""
    return [name for name in subject.variants if (HAS_KERNELS or "fused" not in name) and not needs_cuda(name)]


def plain_and_gated(subject: Subject, how: str) -> tuple[str, str]:
    """A variant of the plain network, compiled where there is one, and one with gates: `eager`, `fused`; the latter is
    uncompiled where nothing is compiled."""
    gated = f"{max(subject.bases)}-{how}"
    plain = "plain-compiled" if subject.compiles else "plain"
    return plain, next(name for name in (gated, f"{gated}-eager") if name in subject.variants)


@every_subject
def test_steps(subject, bench, rows_of, written, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    size, page = subject.cpu_sizes[0], subject.page
    result = bench("step", "--sizes", size, "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of(page)}
    if subject is IMAGES:
        assert "torchvision: left out, torchvision has no ResNets of other widths" in result.output
    has_peer = subject is not IMAGES
    assert list(rows) == [name for name in here(subject) if has_peer or not subject.is_peer(name)]
    best = rows["plain"]["best_plain"]
    assert best in subject.best_plain
    assert float(rows[best]["step_ratio_to_best_plain"]) == 1
    assert float(rows[best]["step_ms"]) == min(float(rows[n]["step_ms"]) for n in subject.best_plain if n in rows)
    asked = {"transponder": "1.12", "comt": "1.04", "window": "1.1", "pixel": "1.1"}
    speed = f"{subject.unit}_per_second"
    for name, row in rows.items():
        assert int(row["rounds"]) >= 3
        for part in ("step", "forward"):
            low, time, high = (float(row[f"{part}_ms{end}"]) for end in ("_p10", "", "_p90"))
            assert low <= time <= high
            # the times have three decimals, of passes that take a tenth of a millisecond or more
            assert float(row[f"{part}_ratio_to_best_plain_spread"]) >= 0.98 * high / low
        assert float(row[speed]) == pytest.approx(1000 * tiny(subject).units / float(row["step_ms"]), rel=1e-2)
        assert float(row["saved_mib"]) > 0
        asked_here = asked.get(name.partition("-")[0], "") if "fused" in name and subject.asked.cpu else ""
        assert ("arithmetic_ratio_to_plain" in row) == (subject is CONNECTIONS)
        if subject is CONNECTIONS and name.endswith("-compiled") and name != "plain-compiled":
            asked_here = str(round(1.05 * float(row["arithmetic_ratio_to_plain"]), 4))
        assert row.get("goal_step_ratio", "") == asked_here, name
        assert row["compiled"] == ("whole" if name.endswith(("-compiled", "-fused")) else "no")
        assert row["peak_mib"] == row["mfu"] == row.get(f"goal_{speed}", "") == ""
        assert all((row[f"step_ratio_to_{peer}"] != "") == has_peer for peer in subject.peers)
        alike = ("plain", *subject.peers, *WITHOUT_MATRICES)
        assert (float(row["flops_ratio_to_plain"]) > 1) == (name.partition("-")[0] not in alike)
        assert row.get("device_type", "cpu") == "cpu"
    assert ("device_type" in rows["plain"]) == ("device_class" in rows["plain"]) == subject.decides_kernels
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own"])
    found, damaged = measurements.measurements(measurements.STEP_FILE)  # what `kernels: auto` goes by from now on
    assert damaged == []
    assert [(each.device, {*each.step_ms}) for each in found] == (
        [(choice.device_here(CPU), {*rows})] if subject.decides_kernels else []
    )
    gated = max(subject.bases)
    assert float(rows[f"{gated}-eager"]["saved_mib"]) > float(rows["plain"]["saved_mib"])
    assert written() == {f"{page}.{kind}" for kind in FILES}
    if subject not in EITHER:
        return
    # Without --precision in fp32 and bf16, blocks compiled one by one: rows of bf16 join, the whole run in fp32 stays.
    names = ["plain-compiled", f"{gated}-compiled"] if subject.compiles else ["plain", f"{gated}-eager"]
    more = bench("step", "--sizes", size, "--variants", ",".join(names), "--compile", "block")
    assert more.exit_code == 0, more.output
    now = rows_of(page)
    assert {row["precision"] for row in now} == {"fp32", subject.precision}
    assert [row for row in now if row["precision"] == "fp32"] == list(rows.values())
    assert {row["variant"]: row["compiled"] for row in now if row["precision"] != "fp32"} == dict.fromkeys(
        names, "block" if subject.compiles else "no"
    )
    assert more.output.count("not written, since") == 1


@pytest.mark.parametrize(("length", "of_flops"), [(2, True), (8, False)])
def test_arithmetic_is_of_flops_or_of_parameters(length, of_flops):
    """Highway has a D x D matrix and D biases more at each of the 2 L junctions. In long sequences attention, which has
    no parameters, takes most FLOPs, and the share of the extra matrices in the parameters is larger than in these."""
    shape = llama("residual-bench", 16, 20, 2, 2, vocabulary=32, batch=1, length=length)
    *_, rows = run_step_benchmark(shape, "fp32", ["plain-compiled", "highway-compiled"], CPU, 1)
    plain, highway = ({key: row[key] for key in ("arithmetic_ratio_to_plain", "flops_ratio_to_plain")} for row in rows)
    parameters = parameter_count(model_of(shape.spec({"name": "pre-ln"})))
    of_parameters = round(1 + 2 * 2 * (16 * 16 + 16) / parameters, 4)
    larger = highway["flops_ratio_to_plain"] if of_flops else of_parameters
    assert (highway["flops_ratio_to_plain"] > of_parameters) == of_flops
    assert highway["arithmetic_ratio_to_plain"] == larger > 1
    assert {*plain.values()} == {1}


@pytest.mark.parametrize(
    ("subject", "base", "precision"),
    [
        (subject, name, precision)
        for subject in SUBJECTS
        for name, base in subject.bases.items()
        for precision in (["fp32"] if base.fused is None else ["fp32", subject.precision])
    ],
    ids=lambda of: getattr(of, "page", of),
)
def test_all_variants_of_a_network_train_the_same_weights_to_the_same_loss(subject, base, precision):
    """In fp32 to rounding; in bf16 the loss is a mean over two images, and a wrong gate is off by tenths. Where nothing
    is fused, all variants are PyTorch's operations: one precision shows it."""
    builder = Variants(subject, tiny(subject), precision, CPU, "whole")
    ready = [builder.prepare(name) for name in here(subject) if name.partition("-")[0] == base]
    losses = [each.loss().item() for each in ready]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5 if precision == "fp32" else 0.05)
    assert len({tuple(map(id, each.parameters)) for each in ready}) == 1
    other = builder.prepare(f"{max({*subject.bases} - {base, 'plain'})}-eager")
    assert not {*map(id, other.parameters)} & {*map(id, ready[0].parameters)}
    before = losses[-1]
    for taken in range(200):  # as a rule three do
        ready[0].step()
        if taken % 3 == 2 and ready[-1].loss().item() < before:
            break
    assert ready[-1].loss().item() < before, "a step of one moves the others"
    if subject is IMAGES:
        tensors = [builder.inputs[0], *(each for each in ready[0].parameters if each.dim() == 4)]
        assert all(each.is_contiguous(memory_format=torch.channels_last) for each in tensors)


def test_the_nondeterministic_step_is_no_baseline_of_goals():
    for subject in SUBJECTS:
        assert (NONDETERMINISTIC in subject.variants) == subject.compiles
        assert NONDETERMINISTIC not in subject.best_plain
    assert is_compiled(NONDETERMINISTIC)
    with pytest.raises(Unavailable, match="CUDA"):
        Variants(IMAGES, tiny(IMAGES), "fp32", CPU, "whole").prepare(NONDETERMINISTIC)


def test_steps_in_cuda_graphs_are_of_cuda_and_of_some_sizes_alone():
    for subject in SUBJECTS:
        names = [name for name in subject.variants if name.endswith(GRAPHS)]
        assert bool(names) == bool(subject.captured)
        assert {*subject.host_bound} <= {*subject.captured}
        assert {*names} <= {*subject.optional}
        for size in subject.shapes:
            assert {*names} - {*subject.variants_of(size)} == (set() if size in subject.captured else {*names})
    check_variants(["60m-b64"], ["plain-compiled-graphs"])
    with pytest.raises(UserError, match="of 130m there are no such"):
        check_variants(["130m"], ["plain-compiled-graphs"])
    with pytest.raises(Unavailable, match="CUDA"):
        Variants(LANGUAGE, tiny(LANGUAGE), "fp32", CPU, "whole").prepare("plain-compiled-graphs")


@pytest.mark.parametrize("what", ["whole", "block"])
@pytest.mark.parametrize(("variant", "captured"), [("plain-compiled", False), ("plain-compiled-graphs", True)])
def test_a_step_in_cuda_graphs_is_captured_and_each_pass_begins_anew(what, variant, captured, monkeypatch):
    """(As if there were a GPU; the compiler's part is left out.)"""
    asked, passes = [], []
    monkeypatch.setattr(variants, "needs_cuda", lambda name: False)
    monkeypatch.setattr(variants, "is_compiled", lambda name: True)
    monkeypatch.setattr(torch, "compile", lambda of, *, options=None, **_: asked.append(options) or of)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: passes.append(None))
    prepared = Variants(LANGUAGE, tiny(LANGUAGE), "fp32", CPU, what).prepare(variant)
    assert asked == [CAPTURED if captured else None] * (1 if what == "whole" else 2)  # of two layers
    prepared.step()
    prepared.forward()
    assert len(passes) == 2 * captured


def test_only_the_nondeterministic_step_runs_without_determinism():
    """(Setting it needs no GPU.)"""
    torch.use_deterministic_algorithms(True)
    try:
        assert nondeterministic(torch.are_deterministic_algorithms_enabled)() is False
        assert torch.are_deterministic_algorithms_enabled()
        with pytest.raises(ZeroDivisionError):
            nondeterministic(lambda: 1 / 0)()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_other_library_computes_the_same_loss():
    """Of its own weights, put into ours: the mean over all targets, to rounding in fp32."""
    builder = Variants(LANGUAGE, tiny(LANGUAGE), "fp32", CPU, "whole")
    theirs, ours = builder.prepare("transformers"), builder.prepare("plain")
    theirs_model, ours_model = (builder._networks[name][0] for name in ("transformers", "plain"))
    tokens, targets = builder.inputs
    logits = theirs_model(input_ids=tokens).logits.flatten(0, 1)
    assert theirs.loss().item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, targets.flatten()).item(), rel=1e-5
    )
    assert parameter_count(theirs_model) == parameter_count(ours_model)
    assert ours.loss().item() == pytest.approx(theirs.loss().item(), rel=0.05), "both are new: about log 32"


def test_bert_of_the_other_library_is_as_large_and_computes_the_same_loss():
    """Over the hidden tokens alone, which stand at different places; with dropout off, to rounding in fp32."""
    builder = Variants(MASKED_LM, tiny(MASKED_LM), "fp32", CPU, "whole")
    theirs = builder.prepare("bertformaskedlm")
    builder.prepare("plain")
    theirs_model, ours_model = (builder._networks[name][0].eval() for name in ("bertformaskedlm", "plain"))
    assert parameter_count(theirs_model) == parameter_count(ours_model)
    tokens, places, targets = builder.inputs
    assert places.shape == targets.shape == (2, 3)
    assert places.max() < 20
    assert all(len(set(row)) == 3 for row in places.tolist())
    logits = theirs_model(input_ids=tokens, attention_mask=tokens != 0).logits
    hidden = logits.gather(1, places[:, :, None].expand(-1, -1, 32)).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(hidden, targets.flatten()).item()
    assert theirs.loss().item() == pytest.approx(expected, rel=1e-5)
    assert ours_model(tokens, places).shape == (2, 3, 32)


def test_torch_translates_as_we_do():
    """Of our weights, put into the network of torch's layers, whose attention has biases that ours lacks: the same
    smoothed loss, to rounding in fp32; padding in the middle of sources, and dropout off, whose masks differ."""
    builder = Variants(TRANSLATION, tiny(TRANSLATION), "fp32", CPU, "whole")
    theirs, ours = builder.prepare("torch"), builder.prepare("plain")
    torch_model, our_model = (builder._networks[name][0].eval() for name in ("torch", "plain"))
    assert (builder.inputs[0] == 0).any()
    weights = our_model.state_dict()
    said = {"embedding.weight": weights["embedding.weight"], "positions_TD": torch_model.positions_TD}
    names = {"attention": "self_attn", "cross": "multihead_attn"}
    for stack, count in (("encoder", 1), ("decoder", 2)):
        parts = ["attention", *(["cross"] if stack == "decoder" else []), "mlp"]
        for block in (f"{stack}.{layer}" for layer in range(count)):
            for place, part in enumerate(parts, 1):
                for end in ("weight", "bias"):
                    said[f"{block}.norm{place}.{end}"] = weights[f"{block}.{part}_connection.norm.{end}"]
            for part in parts[:-1]:
                inputs = ("qkv",) if part == "attention" else ("query", "key_value")
                matrix = torch.cat([weights[f"{block}.{part}.{each}.weight"] for each in inputs])
                said[f"{block}.{names[part]}.in_proj_weight"] = matrix
                said[f"{block}.{names[part]}.in_proj_bias"] = torch.zeros(len(matrix))
                said[f"{block}.{names[part]}.out_proj.weight"] = weights[f"{block}.{part}.output.weight"]
                said[f"{block}.{names[part]}.out_proj.bias"] = torch.zeros(len(matrix) // 3)
            for linear, projection in (("linear1", "up"), ("linear2", "down")):
                for end in ("weight", "bias"):
                    said[f"{block}.{linear}.{end}"] = weights[f"{block}.mlp.{projection}.{end}"]
    torch_model.load_state_dict(said)
    assert theirs.loss().item() == pytest.approx(ours.loss().item(), rel=1e-5)
    logits = our_model(*builder.inputs[:2]).flatten(0, 1)
    smooth = torch.nn.functional.cross_entropy(logits, builder.inputs[2].flatten(), label_smoothing=0.1 * 32 / 31)
    assert ours.loss().item() == pytest.approx(smooth.item(), rel=1e-5)
    biases = sum(x.numel() for name, x in torch_model.named_parameters() if "proj_bias" in name or "proj.bias" in name)
    assert parameter_count(torch_model) == parameter_count(our_model) + biases


def test_marian_is_as_large():
    """But for the biases of its attention, 4 numbers a channel and attention, of which there are 1 + 2 x 2; its
    positions are parameters, which do not train."""
    builder = Variants(TRANSLATION, tiny(TRANSLATION), "fp32", CPU, "whole")
    builder.prepare("marian"), builder.prepare("plain")
    marian, ours = (builder._networks[name][0] for name in ("marian", "plain"))
    trained = sum(parameter.numel() for parameter in marian.parameters() if parameter.requires_grad)
    assert trained == parameter_count(ours) + 5 * 4 * 16


@pytest.mark.parametrize("device", ["An EPYC, 2 threads", "NVIDIA H200"])
@pytest.mark.parametrize(("subject", "peer"), [(TRANSLATION, "torch"), (MASKED_LM, "bertformaskedlm")])
def test_the_goal_beside_another_library(subject, peer, device):
    """It is asked of the plain network on the whole batch, beside the first peer."""
    (size,) = subject.gpu_sizes
    shape = subject.shapes[size]
    row = {"size": size, "shape": str(shape), "device": device, "precision": "bf16-mixed", "best_plain": "plain"}
    kind = "cuda" if "H200" in device else "cpu"
    goal = f"goal_step_ratio_to_{peer}"
    assert subject.goals(row | {"variant": "plain"}, kind) == {goal: 1.0}
    for other in ({"variant": "grc-eager"}, {"variant": "plain", "shape": str(shape.halved())}):
        assert subject.goals(row | other, kind) == {goal: None}


@pytest.mark.parametrize(("ratio", "verdict"), [(1.06, "met"), (1.04, "missed")])
def test_the_goal_beside_a_compiled_library(ratio, verdict):
    """Our best plain step is at most 0.95 of it on a CPU in fp32, which its own row shows as the inverse."""
    row = {"size": "bench", "shape": "any", "device": "An EPYC, 2 threads", "precision": "fp32", "best_plain": "plain"}
    goals = LANGUAGE.goals(row | {"variant": "transformers-compiled"})
    assert {name: goal for name, goal in goals.items() if goal is not None} == {"goal_least_step_ratio": 1.0526}
    for other in ({"variant": "transformers"}, {"variant": "transformers-compiled", "device": "NVIDIA H200"}):
        assert LANGUAGE.goals(row | other, "cuda")["goal_least_step_ratio"] is None
    shown = {"step_ratio_to_best_plain": f"{ratio}", **{name: f"{goal}" for name, goal in goals.items() if goal}}
    (said,) = filter(None, (goal.verdict(shown) for goal in pages()["step"].goals))
    assert said.startswith(f"step {verdict} (")
    assert "at least 1.0526" in said


@either_subject
def test_where_nothing_is_fused_a_fused_variant_is_left_out(subject, monkeypatch):
    """Rather than measured as something that it is not."""
    monkeypatch.setattr(
        variants,
        "use_kernels",
        lambda model, *_, **how: use_kernels(model, "reference", CPU, torch.float32, **how),
    )
    plain, fused = plain_and_gated(subject, "fused")
    *news, rows = run_step_benchmark(tiny(subject), "fp32", [plain, fused], CPU, 1)
    assert [row["variant"] for row in rows] == [plain]
    assert any(f"{fused}: left out, nothing is fused here" in line for line in news)


@either_subject
@pytest.mark.parametrize("form", ["eager", "fused"])
def test_what_does_not_fit(monkeypatch, subject, form):
    """An uncompiled variant is left out; for the others the batch is halved, for all."""
    prepare, base, shape = Variants.prepare, max(subject.bases), tiny(subject)

    plain, fused = plain_and_gated(subject, "fused")
    limit = f"{base}-eager" if form == "eager" else fused

    def limited(self, variant):
        if variant == limit and self.shape.batch > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return prepare(self, f"{base}-eager" if variant == fused else variant)

    monkeypatch.setattr(Variants, "prepare", limited)
    names = [plain, f"{base}-eager", fused]
    *news, rows = run_step_benchmark(shape, "fp32", names, CPU, 1)
    if form == "eager":
        assert {(row["variant"], row["shape"]) for row in rows} == {(name, str(shape)) for name in names[::2]}
        assert f"{shape.size} fp32 {base}-eager: left out, does not fit with {shape.amount}" in news
    else:
        assert [row["variant"] for row in rows] == names
        assert {row["shape"] for row in rows} == {str(shape.halved())}
        assert f"too large: once more with {shape.halved().amount} a step" in news


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "shape", [llama("bench", 16, 20, 2, 2, vocabulary=32, batch=2, length=8),
              resnet("resnet18-b32", "resnet18", pixels=8, batch=2),
              bert("bert-bench", {"size": "tiny", "width": 16, "heads": 2}, vocabulary=32, batch=2, length=8)],
    ids=lambda shape: shape.size,
)  # fmt: skip
def test_without_the_other_library(bench, written, monkeypatch, named, shape):
    """Asked for by name: an error before anything is built. Otherwise its variants are left out, and all is well."""

    def missing(module, *_):
        raise UserError(f"the comparison with {module} needs that library", "pip install it")

    monkeypatch.setattr(peers, "import_peer", missing)
    (peer,) = subjects.subject_of(shape.size).peers
    is_compiled = subjects.subject_of(shape.size).compiles
    names = ["plain-compiled", peer, f"{peer}-compiled"] if is_compiled else ["plain", peer]
    if named:
        monkeypatch.setattr(Variants, "prepare", lambda *_: pytest.fail("something was built"))
        result = bench("step", "--sizes", shape.size, "--precision", "fp32", "--variants", ",".join(names))
        assert isinstance(result.exception, UserError)
        assert result.exception.exit_status == 2
        assert "needs that library" in str(result.exception)
        assert written() == set()
        return
    *news, rows = run_step_benchmark(shape, "fp32", names, CPU, 1)
    assert [row["variant"] for row in rows] == names[:1]
    for name in names[1:]:
        assert any(line.startswith(f"{shape.size} fp32 {name}: left out, the comparison with") for line in news)
    assert not any(isinstance(each, Failed) for each in news)


def test_a_library_that_is_not_there(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(peers.importlib, "import_module", missing)
    with pytest.raises(UserError, match="the comparison with torchvision needs that library") as told:
        import_peer("torchvision.models", "torch", "torchvision")
    assert "install torch torchvision" in str(told.value.hint)
    assert {name for subject in SUBJECTS for name in subject.peers} == {*PEERS}


@pytest.mark.parametrize("size", ["resnet18", "resnet50", "resnet50-224"])
def test_the_peer_is_the_same_network(size):
    shape = RESNETS[size]
    classes, pixels = shape.dimensions["classes"], shape.dimensions["size"]
    with torch.device("meta"):
        peer = torchvision_resnet(shape)
        assert peer(torch.empty(2, 3, pixels, pixels)).shape == (2, classes)
    assert parameter_count(peer) == parameter_count(model_of(shape.spec({"name": "addition"})))


@pytest.mark.usefixtures("copying_task")
def test_another_task_is_measured_by_an_entry(bench, rows_of, written, monkeypatch):
    """The toy task, which no file of the program names."""
    network = {"size": "tiny", "width": 16, "ffn_width": 20, "layers": 2, "heads": 2}
    copying = Subject(
        page="step-copying",
        title="Training step of copying",
        stage="copying step",
        command="train-copying",
        shapes={"copy": Shape("copy", "train-copying", "tiny", network, {"symbols": 9, "length": 4}, 3)},
        gpu_sizes=("copy",),
        cpu_sizes=("copy",),
        bases={"plain": Base({"name": "pre-ln"}, "no gates"), "comt": Base({"name": "comt"}, "CoMT")},
        precision="bf16-mixed",
    )
    monkeypatch.setattr(subjects, "SUBJECTS", (*SUBJECTS, copying))
    result = bench("step", "--sizes", "copy", "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of("step-copying")}
    assert list(rows) == here(copying)
    assert {row["shape"] for row in rows.values()} == {"tiny-v10-b3x8"}
    assert float(rows["plain"]["symbols_per_second"]) == pytest.approx(
        1000 * 24 / float(rows["plain"]["step_ms"]), rel=1e-2
    )
    assert "step_ratio_to_best_plain" in rows["plain"]
    assert not [name for name in rows["plain"] if name.startswith(("goal", "step_ratio_to_t"))]
    assert written() == {f"step-copying.{kind}" for kind in FILES}
