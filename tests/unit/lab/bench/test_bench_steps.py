"""Training steps of every task, timed: variants, what they share, other libraries', goals, what does not fit."""

from __future__ import annotations

import gc
import math

import pytest
import torch

from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements
from comt_cli.lab.bench import peers, step, subjects
from comt_cli.lab.bench.ending import Failed
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.step import run_step_benchmark, steps_in_turns
from comt_cli.lab.bench.subjects import (
    IMAGES,
    LANGUAGE,
    SUBJECTS,
    TRANSLATION,
    Network,
    Subject,
    needs_cuda,
    subject_of,
)
from comt_cli.lab.bench.variants import Prepared, Variants
from comt_cli.models.flops import parameter_count

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
MASKED_LM, CONNECTIONS = subject_of("bert-bench"), subject_of("residual-bench")
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.page)
EPYC, H200 = "An EPYC, 2 threads", "NVIDIA H200"


def tiny(subject: Subject) -> Shape:
    return subject.shapes[subject.cpu_sizes[0]]


def here(subject: Subject) -> list[str]:
    """The variants that there are on this machine."""
    return [name for name in subject.variants if (HAS_KERNELS or "fused" not in name) and not needs_cuda(name)]


@every_subject
def test_steps(subject, bench, rows_of, written, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    size, page = subject.cpu_sizes[0], subject.page
    result = bench("step", "--sizes", size, "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of(page)}
    has_peer = subject is not IMAGES  # torchvision has no ResNets of other widths
    assert list(rows) == [name for name in here(subject) if has_peer or not subject.is_peer(name)]
    best = rows["plain"]["best_plain"]
    assert float(rows[best]["step_ratio_to_best_plain"]) == 1
    assert float(rows[best]["step_ms"]) == min(float(rows[n]["step_ms"]) for n in subject.best_plain if n in rows)
    for name, row in rows.items():
        for part in ("step", "forward"):
            low, time, high = (float(row[f"{part}_ms{end}"]) for end in ("_p10", "", "_p90"))
            assert low <= time <= high
        speed = 1000 * tiny(subject).units / float(row["step_ms"])
        assert float(row[f"{subject.unit}_per_second"]) == pytest.approx(speed, rel=1e-2)
        assert row["compiled"] == ("whole" if name.endswith(("-compiled", "-fused")) else "no")
        assert row["peak_mib"] == row["mfu"] == ""
        assert all((row[f"step_ratio_to_{peer}"] != "") == has_peer for peer in subject.peers)
        alike = name.partition("-")[0] in ("plain", *subject.peers)
        assert (float(row["flops_ratio_to_plain"]) > 1) != alike
        assert ("arithmetic_ratio_to_plain" in row) == (subject is CONNECTIONS)
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own"])
    found, damaged = measurements.measurements(measurements.STEP_FILE)  # what `kernels: auto` goes by from now on
    assert damaged == []
    assert [{*each.step_ms} for each in found] == ([{*rows}] if subject.decides_kernels else [])
    gated = max(subject.networks)
    assert float(rows[f"{gated}-eager"]["saved_mib"]) > float(rows["plain"]["saved_mib"])
    assert written() == {f"{page}.{kind}" for kind in ("csv", "md", "png", "pdf", "txt", "tex")}


@pytest.mark.parametrize(
    ("subject", "network", "precision"),
    [
        (subject, max(subject.networks), precision)
        for subject in SUBJECTS
        for precision in (
            ["fp32"] if subject.networks[max(subject.networks)].fused is None else ["fp32", subject.precision]
        )
    ],
    ids=lambda of: getattr(of, "page", of),
)
def test_all_variants_of_a_network_train_the_same_weights_to_the_same_loss(subject, network, precision):
    """In fp32 to rounding; in bf16 the loss is a mean over two samples, and a wrong gate is off by tenths."""
    builder = Variants(subject, tiny(subject), precision, CPU, "whole")
    ready = [builder.prepare(name) for name in here(subject) if name.partition("-")[0] == network]
    losses = [each.loss().item() for each in ready]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5 if precision == "fp32" else 0.05)
    assert len({tuple(map(id, each.parameters)) for each in ready}) == 1
    other = builder.prepare("plain")
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


# ---- other libraries


def test_transformers_computes_the_same_loss():
    """Of its own weights: the mean over all targets, or over the hidden tokens alone, which stand at different places;
    with dropout off, to rounding in fp32."""
    builder = Variants(LANGUAGE, tiny(LANGUAGE), "fp32", CPU, "whole")
    theirs = builder.prepare("transformers")
    builder.prepare("plain")
    theirs_model, ours_model = (builder._networks[name][0] for name in ("transformers", "plain"))
    tokens, targets = builder.inputs
    logits = theirs_model(input_ids=tokens).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten()).item()
    assert theirs.loss().item() == pytest.approx(expected, rel=1e-5)
    assert parameter_count(theirs_model) == parameter_count(ours_model)

    builder = Variants(MASKED_LM, tiny(MASKED_LM), "fp32", CPU, "whole")
    theirs = builder.prepare("bertformaskedlm")
    builder.prepare("plain")
    theirs_model, ours_model = (builder._networks[name][0].eval() for name in ("bertformaskedlm", "plain"))
    assert parameter_count(theirs_model) == parameter_count(ours_model)
    tokens, places, targets = builder.inputs
    assert all(len(set(row)) == 3 for row in places.tolist())
    logits = theirs_model(input_ids=tokens, attention_mask=tokens != 0).logits
    hidden = logits.gather(1, places[:, :, None].expand(-1, -1, 32)).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(hidden, targets.flatten()).item()
    assert theirs.loss().item() == pytest.approx(expected, rel=1e-5)


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
    builder.prepare("marian")  # but for the biases of its attention, 4 numbers a channel, it is as large as ours
    trained = sum(each.numel() for each in builder._networks["marian"][0].parameters() if each.requires_grad)
    assert trained == parameter_count(our_model) + 5 * 4 * 16


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("subject", [LANGUAGE, MASKED_LM], ids=lambda subject: subject.page)
def test_without_the_other_library(bench, written, monkeypatch, named, subject):
    """Asked for by name: an error before anything is built. Otherwise its variants are left out, and all is well."""

    def missing(module, *_):
        raise UserError(f"the comparison with {module} needs that library", "pip install it")

    monkeypatch.setattr(peers, "import_peer", missing)
    (peer,) = subject.peers
    names = ["plain-compiled", peer, f"{peer}-compiled"] if subject.compiles else ["plain", peer]
    size = tiny(subject).size
    if named:
        monkeypatch.setattr(Variants, "prepare", lambda *_: pytest.fail("something was built"))
        result = bench("step", "--sizes", size, "--precision", "fp32", "--variants", ",".join(names))
        assert isinstance(result.exception, UserError)
        assert written() == set()
        return
    *news, rows = run_step_benchmark(tiny(subject), "fp32", names, CPU, 1)
    assert [row["variant"] for row in rows] == names[:1]
    for name in names[1:]:
        assert any(line.startswith(f"{size} fp32 {name}: left out, the comparison with") for line in news)
    assert not any(isinstance(each, Failed) for each in news)


# ---- goals


@pytest.mark.parametrize(
    ("size", "variant", "device", "precision", "goals"),
    [
        ("60m", "transponder-fused", H200, "bf16-pure", {"goal_step_ratio": 1.08, "goal_saved_ratio": 1.15}),
        ("60m", "comt-fused-graphs", H200, "bf16-pure", {"goal_step_ratio": 1.04, "goal_saved_ratio": 1.15}),
        ("60m", "transponder-fused", H200, "fp32", {}),
        ("60m", "transponder-fused", "NVIDIA A100", "bf16-pure", {}),
        ("60m", "transponder-eager", H200, "bf16-pure", {}),
        ("bench", "comt-fused", EPYC, "bf16-pure", {"goal_step_ratio": 1.08}),
        ("bench", "transformers-compiled", EPYC, "fp32", {"goal_least_step_ratio": 1.0526}),
        ("resnet18-b32", "pixel-fused-eager", EPYC, "bf16-mixed", {"goal_step_ratio": 1.1}),
        ("resnet18", "plain", H200, "bf16-mixed", {"goal_images_per_second": 60_000}),
        ("base", "plain", H200, "bf16-mixed", {"goal_step_ratio_to_torch": 1.0}),
        ("base", "grc-eager", H200, "bf16-mixed", {}),
        ("residual-bench", "sas-compiled", EPYC, "fp32", {"goal_step_ratio": 1.155}),
        ("residual-bench", "sas-eager", EPYC, "fp32", {}),
    ],
)
def test_goals(size, variant, device, precision, goals):
    subject = subject_of(size)
    row = {"size": size, "variant": variant, "device": device, "precision": precision, "best_plain": "plain"}
    row |= {"shape": str(subject.shapes[size]), "arithmetic_ratio_to_plain": "1.1"}
    kind = "cpu" if device == EPYC else "cuda"
    found = subject.goals(row, kind)
    assert {name: goal for name, goal in found.items() if goal is not None} == goals
    other = subject.goals(row | {"shape": "another batch"}, kind)
    assert not {"goal_images_per_second", "goal_step_ratio_to_torch"} & {n for n, goal in other.items() if goal}


# ---- what fails or does not fit


@pytest.mark.parametrize("when", ["it is built", "it runs"])
def test_a_step_that_fails(monkeypatch, when):
    prepare = Variants.prepare

    def fails(*_):
        raise RuntimeError("one line\nand more")

    def failing(self, variant):
        prepared = fails() if variant == "comt-compiled" and when == "it is built" else prepare(self, variant)
        if variant == "comt-compiled":
            object.__setattr__(prepared, "forward", fails)
        return prepared

    monkeypatch.setattr(Variants, "prepare", failing)
    names = ["plain-compiled", "comt-compiled", "transponder-compiled"]
    *news, rows = run_step_benchmark(tiny(LANGUAGE), "fp32", names, CPU, 1)
    assert [each for each in news if isinstance(each, Failed)] == [
        "bench fp32 comt-compiled: failed (RuntimeError: one line)"
    ]
    assert [row["variant"] for row in rows] == names[::2]


def alive() -> int:
    """Tensors, parameters among them."""
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


@pytest.mark.parametrize(
    ("variant", "part"),
    [("transponder-compiled", "prepare"), ("transponder-compiled", "step"),
     ("transponder-eager", "forward"), ("transponder-eager", "loss")],
)  # fmt: skip
def test_what_does_not_fit_is_freed(monkeypatch, variant, part):
    """Memory is full at the second call of a part: an uncompiled variant is left out; for the others the batch is
    halved, for all. Nothing of it stays alive."""
    counts: list[int] = []

    class Full(Variants):
        def prepare(self, name: str) -> Prepared:
            prepared = super().prepare(name)
            calls = iter([False, True] if part in ("step", "forward") else [True])

            def full(what: str):
                def call():
                    result = getattr(prepared, what)()  # what it made is alive at that moment
                    if name == variant and self.shape.batch > 1 and what == part and next(calls, False):
                        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                    return result

                return call

            if part == "prepare" and name == variant and self.shape.batch > 1:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return Prepared(full("step"), full("forward"), full("loss"), prepared.parameters)

    def make(shape: Shape) -> Variants:
        counts.append(alive())
        return Full(LANGUAGE, shape, "fp32", CPU, "whole")

    monkeypatch.setattr(step, "peak_beyond", lambda part, device: part() and None)
    names = ["plain-compiled", "transponder-compiled", "transponder-eager"]
    for _ in range(2):  # what is made once in a process, such as tables of positions, stays
        counts.clear()
        *news, timed = steps_in_turns(tiny(LANGUAGE), "fp32", names, make, CPU, 1, lambda: True)
        counts.append(alive())
    if variant == "transponder-eager":
        assert timed.variants == names[:2]
        assert f"bench fp32 {variant}: left out, does not fit with 16 tokens" in news
    else:
        assert timed.variants == names
        assert timed.shape == tiny(LANGUAGE).halved()
        assert "too large: once more with 8 tokens a step" in news
    del news, timed
    assert len({*counts}) == 1


def test_steps_end_when_time_is_up():
    """What is built by then is timed once, which is not settled; the rest is left out."""
    answers = iter([True, True])
    names = ["plain", "sas-eager", "grc-eager"]
    *news, rows = run_step_benchmark(tiny(TRANSLATION), "fp32", names, CPU, 15, go_on=lambda: next(answers, False))
    assert "mt-bench fp32 grc-eager: left out for want of time" in news
    found = [(row["variant"], row["rounds"], row["step_ratio_to_best_plain_settled"]) for row in rows]
    assert found == [("plain", 1, False), ("sas-eager", 1, False)]


@pytest.mark.usefixtures("copying_task")
def test_another_task_is_measured_by_an_entry(bench, rows_of, written, monkeypatch):
    """The toy task, which no file of the program names."""
    network = {"size": "tiny", "width": 16, "ffn_width": 20, "layers": 2, "heads": 2}
    copying = Subject(
        page="step-copying",
        title="Training step of copying",
        stage="copying step",
        command="train-copying",
        precision="bf16-mixed",
        shapes={"copy": Shape("copy", "train-copying", network, {"symbols": 9, "length": 4}, 3)},
        gpu_sizes=("copy",),
        cpu_sizes=("copy",),
        networks={"plain": Network({"name": "pre-ln"}, "no gates"), "comt": Network({"name": "comt"}, "CoMT")},
    )
    monkeypatch.setattr(subjects, "SUBJECTS", (*SUBJECTS, copying))
    for module in ("step", "record"):
        monkeypatch.setattr(f"comt_cli.lab.bench.{module}.SUBJECTS", (*SUBJECTS, copying))
    result = bench("step", "--sizes", "copy", "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of("step-copying")}
    assert list(rows) == here(copying)
    assert math.isclose(
        float(rows["plain"]["symbols_per_second"]), 24e3 / float(rows["plain"]["step_ms"]), rel_tol=1e-2
    )
    assert not [name for name in rows["plain"] if name.startswith(("goal", "step_ratio_to_t"))]
