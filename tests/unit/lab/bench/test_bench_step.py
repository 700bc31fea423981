"""Training steps of every task, timed: variants, what they share, other libraries', goals, what does not fit."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements
from comt_cli.lab.bench import peers, step, tables
from comt_cli.lab.bench.runner import Deadline, Failed, Rows, Turns, run_cases
from comt_cli.lab.bench.step import Prepared, StepCase, Variants
from comt_cli.lab.bench.tables import (
    IMAGES,
    LANGUAGE,
    SUBJECTS,
    TRANSLATION,
    Network,
    Shape,
    Subject,
    needs_cuda,
    subject_of,
)  # fmt: skip
from comt_cli.models.flops import parameter_count

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
MASKED_LM, CONNECTIONS = subject_of("bert-bench"), subject_of("residual-bench")
SOME = [pytest.param(each, marks=[pytest.mark.slow] if place else []) for place, each in enumerate(SUBJECTS)]
EPYC, H200 = "An EPYC, 2 threads", "NVIDIA H200"


def tiny(subject: Subject) -> Shape:
    return subject.shapes[subject.cpu_sizes[0]]


def here(subject: Subject) -> list[str]:
    """The variants that there are on this machine."""
    return [name for name in subject.variants if (HAS_KERNELS or "fused" not in name) and not needs_cuda(name)]


def measured(case: StepCase, rounds: int = 1, deadline: Deadline | None = None) -> tuple[list[str], list[dict]]:
    news = [*run_cases([case], Turns(rounds, deadline or Deadline()))]
    rows = [row for each in news if isinstance(each, Rows) for row in each.rows]
    return [each for each in news if not isinstance(each, Rows)], rows


@pytest.mark.parametrize("subject", SOME, ids=lambda subject: subject.page)
def test_steps(subject, bench, rows_of, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    result = bench("step", "--sizes", subject.cpu_sizes[0], "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of(subject.page)}
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
    files = {path.name for path in tmp_path.glob("bench/*/*")}
    assert files == {f"{subject.page}.{kind}" for kind in ("csv", "md", "png", "pdf", "txt", "tex")}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.page)
def test_all_variants_of_a_network_train_the_same_weights_to_the_same_loss(subject):
    network = max(subject.networks)
    builder = Variants(subject, tiny(subject), "fp32", CPU, "whole")
    ready = [builder.prepare(name) for name in here(subject) if name.partition("-")[0] == network]
    losses = [each.loss().item() for each in ready]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    trained = [{*map(id, each.model.parameters())} for each in (*ready, builder.prepare("plain"))]
    assert all(each == trained[0] for each in trained[:-1])
    assert not trained[0] & trained[-1]
    for taken in range(200):  # as a rule three do
        ready[0].step()
        if taken % 3 == 2 and ready[-1].loss().item() < losses[-1]:
            break
    assert ready[-1].loss().item() < losses[-1], "a step of one moves the others"


# ---- other libraries


@pytest.mark.parametrize("subject", [LANGUAGE, MASKED_LM], ids=lambda subject: subject.page)
def test_transformers_computes_the_same_loss(subject):
    """Of its own weights: the mean over all targets, or over the hidden tokens alone, which stand at different places;
    with dropout off, to rounding in fp32."""
    builder, (peer,) = Variants(subject, tiny(subject), "fp32", CPU, "whole"), subject.peers
    loss = builder.prepare(peer).loss
    builder.prepare("plain")
    theirs, ours = (builder.networks[name].model.eval() for name in (peer, "plain"))
    tokens, *places, targets = builder.inputs
    logits = theirs(input_ids=tokens, attention_mask=tokens != 0 if places else None).logits
    if places:
        logits = logits.gather(1, places[0][:, :, None].expand(-1, -1, 32))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert loss().item() == pytest.approx(expected, rel=1e-5)
    assert parameter_count(theirs) == parameter_count(ours)


def test_torch_translates_as_we_do():
    """Of our weights, put into the network of torch's layers, whose attention has biases that ours lacks: the same
    smoothed loss, to rounding in fp32; padding in the middle of sources, and dropout off, whose masks differ."""
    builder = Variants(TRANSLATION, tiny(TRANSLATION), "fp32", CPU, "whole")
    theirs, ours = builder.prepare("torch"), builder.prepare("plain")
    torch_model, our_model = theirs.model.eval(), ours.model.eval()
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


@pytest.mark.parametrize("named", [True, False])
def test_without_the_other_library(bench, monkeypatch, named, tmp_path):
    """Asked for by name: an error before anything is built. Otherwise its variants are left out, and all is well."""

    def missing(module, *_):
        raise UserError(f"the comparison with {module} needs that library", "pip install it")

    monkeypatch.setattr(peers, "import_peer", missing)
    names = ["plain-compiled", "transformers", "transformers-compiled"]
    if named:
        result = bench("step", "--sizes", "bench", "--precision", "fp32", "--variants", ",".join(names))
        assert isinstance(result.exception, UserError)
        assert not [*tmp_path.glob("bench/*/*")]
        return
    news, rows = measured(StepCase(tiny(LANGUAGE), "fp32", names, CPU))
    assert [row["variant"] for row in rows] == names[:1]
    assert sum("left out, the comparison with" in line for line in news) == 2
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
        ("base", "plain", "NVIDIA A100", "bf16-mixed", {}),
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
    found = subject.goals_of(row, kind)
    assert {name: goal for name, goal in found.items() if goal is not None} == goals
    other = subject.goals_of(row | {"shape": "another batch"}, kind)
    assert not {"goal_images_per_second", "goal_step_ratio_to_torch"} & {n for n, goal in other.items() if goal}


# ---- what fails or does not fit


def fails(*_):
    raise RuntimeError("one line\nand more")


@pytest.mark.parametrize("when", ["it is built", "it runs"])
def test_a_step_that_fails(monkeypatch, when):
    prepare = Variants.prepare

    def failing(self, variant):
        if variant != "comt-compiled":
            return prepare(self, variant)
        return replace(prepare(self, variant), forward=fails) if when == "it runs" else fails()

    monkeypatch.setattr(Variants, "prepare", failing)
    names = ["plain-compiled", "comt-compiled", "transponder-compiled"]
    news, rows = measured(StepCase(tiny(LANGUAGE), "fp32", names, CPU))
    failed = [each for each in news if isinstance(each, Failed)]
    assert failed == ["bench fp32 comt-compiled: failed (RuntimeError: one line)"]
    assert [row["variant"] for row in rows] == names[::2]


@pytest.mark.parametrize(
    ("variant", "part"),
    [
        pytest.param("transponder-compiled", "prepare", marks=pytest.mark.slow),
        pytest.param("transponder-compiled", "step", marks=pytest.mark.slow),
        ("transponder-eager", "forward"),
        pytest.param("transponder-eager", "loss", marks=pytest.mark.slow),
    ],
)
def test_what_does_not_fit_is_freed(monkeypatch, variant, part):
    """Memory is full: an uncompiled variant is left out; for the others the batch is halved, for all. Nothing of it
    stays alive."""
    counts: list[int] = []
    prepare, begin = Variants.prepare, Variants.__init__

    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def counted(self, *given):
        gc.collect()
        counts.append(sum(isinstance(each, torch.Tensor) for each in gc.get_objects()))
        begin(self, *given)

    def limited(self, name: str) -> Prepared:
        if name != variant or self.shape.batch == 1:
            return prepare(self, name)
        return full() if part == "prepare" else replace(prepare(self, name), **{part: full})

    monkeypatch.setattr(Variants, "__init__", counted)
    monkeypatch.setattr(Variants, "prepare", limited)
    names = ["plain-compiled", "transponder-compiled", "transponder-eager"]
    for _ in range(3):  # what is made once in a process, such as tables of positions, stays
        del counts[:-1]
        news, rows = measured(StepCase(tiny(LANGUAGE), "fp32", names, CPU))
        is_optional = variant == "transponder-eager"
        assert [row["variant"] for row in rows] == (names[:2] if is_optional else names)
        assert {row["shape"].rpartition("-")[2] for row in rows} == {"b2x8" if is_optional else "b1x8"}
        assert any("left out, does not fit" if is_optional else "too large" in line for line in news)
        del news, rows
    assert len({*counts}) == 1


def test_steps_end_when_time_is_up():
    """What is built by then is timed once, which is not settled; the rest is left out."""
    deadline, answers = Deadline(), iter([1.0, 1.0, 1.0])
    deadline.left = lambda: next(answers, 0.0)
    names = ["plain", "sas-eager", "grc-eager"]
    news, rows = measured(StepCase(tiny(TRANSLATION), "fp32", names, CPU), 15, deadline)
    assert "mt-bench fp32 grc-eager: left out for want of time" in news
    found = [(row["variant"], row["rounds"], row["step_ratio_to_best_plain_settled"]) for row in rows]
    assert found == [("plain", 1, False), ("sas-eager", 1, False)]


@pytest.mark.usefixtures("copying_task")
def test_another_task_is_measured_by_an_entry(bench, rows_of, monkeypatch):
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
    for module in (tables, step, "comt_cli.lab.bench.record"):
        where = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{where}.SUBJECTS", (*SUBJECTS, copying))
    result = bench("step", "--sizes", "copy", "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of("step-copying")}
    assert list(rows) == here(copying)
    assert float(rows["plain"]["symbols_per_second"]) == pytest.approx(24e3 / float(rows["plain"]["step_ms"]), rel=1e-2)
