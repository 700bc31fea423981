"""Training steps of every task, timed: variants, what they share, other libraries', what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comt_cli.kernels import choice, measurements
from comt_cli.lab.runner import Session, run_cases
from comt_cli.lab.step import StepCase, TrainedNetwork
from comt_cli.lab.subjects import GRAPHS, LANGUAGE, PEER, SUBJECTS, Shape, Subject
from comt_cli.models.flops import parameter_count
from comt_cli.verbs.plan import plan_recipe

pytestmark = pytest.mark.usefixtures("small")

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
every_subject = pytest.mark.parametrize(
    "subject",
    [
        pytest.param(each, id=name, marks=[pytest.mark.slow] if k else [])
        for k, (name, each) in enumerate(SUBJECTS.items())
    ],
)


def tiny(subject: Subject) -> Shape:
    return subject.shapes[subject.cpu_sizes[0]]


def here(subject: Subject) -> list[str]:
    """The variants that there are on this machine."""
    return [name for name in subject.variants if (HAS_KERNELS or "fused" not in name) and not name.endswith(GRAPHS)]


def measured(case: StepCase, session: Session | None = None) -> tuple[list[dict], Session]:
    rows: list[dict] = []
    session = session or Session(1)
    session.write = lambda _, found: rows.extend(found) or ()
    run_cases([case], session)
    return rows, session


@every_subject
def test_steps(subject, bench, rows_of, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    result = bench("step", "--sizes", subject.cpu_sizes[0], "--precision", "fp32")
    assert result.exit_code == 0, result.output
    rows = {row["variant"]: row for row in rows_of(subject.page)}
    assert list(rows) == here(subject)
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
        assert (PEER not in rows) or float(row[f"step_ratio_to_{PEER}"]) > 0
        assert (float(row["flops_ratio_to_plain"]) > 1) == (name.partition("-")[0] not in ("plain", PEER))
        assert ("arithmetic_ratio_to_plain" in row) == subject.counts_arithmetic
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own"])
    found, damaged = measurements.measurements(measurements.STEP_FILE)  # what `kernels: auto` goes by from now on
    assert damaged == []
    assert [{*each.step_ms} for each in found] == ([{*rows}] if subject.decides_kernels else [])
    gated = max(subject.networks)
    assert float(rows[f"{gated}-eager"]["saved_mib"]) > float(rows["plain"]["saved_mib"])


@every_subject
def test_all_variants_of_a_network_train_the_same_weights_to_the_same_loss(subject):
    network = max(subject.networks)
    case, networks = StepCase(tiny(subject), "fp32", [], CPU), {}
    ready = [case.prepare(name, networks)[0] for name in here(subject) if name.partition("-")[0] == network]
    losses = [each.loss().item() for each in ready]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    trained = [{*map(id, each.model.parameters())} for each in (*ready, case.prepare("plain", networks)[0])]
    assert all(each == trained[0] for each in trained[:-1])
    assert not trained[0] & trained[-1]
    for taken in range(200):  # as a rule three do
        ready[0].step()
        if taken % 3 == 2 and ready[-1].loss().item() < losses[-1]:
            break
    assert ready[-1].loss().item() < losses[-1], "a step of one moves the others"


def test_transformers_computes_the_same_loss():
    """Of its own weights, to rounding; the network has as many as ours."""
    case, networks = StepCase(tiny(LANGUAGE), "fp32", [], CPU), {}
    loss = case.prepare(PEER, networks)[0].loss
    case.prepare("plain", networks)
    theirs, ours = (networks[name].model for name in (PEER, "plain"))
    tokens, targets = networks[PEER].inputs
    expected = torch.nn.functional.cross_entropy(theirs(input_ids=tokens).logits.flatten(0, 1), targets.flatten())
    assert loss().item() == pytest.approx(expected.item(), rel=1e-5)
    assert parameter_count(theirs) == parameter_count(ours)


def test_a_recipe_whose_runs_have_a_test_split_can_be_timed():
    (spec, *_) = plan_recipe("ours/ladder", "smoke").specs
    network = TrainedNetwork(spec, 2, CPU)
    assert network.prepared(network.form(None, compiled=False)[0]).loss().isfinite()


def test_what_does_not_fit_is_left_out(monkeypatch):
    prepare = StepCase.prepare

    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def limited(self, name: str, networks: dict):
        found, note = prepare(self, name, networks)
        return (replace(found, loss=full) if name == "transponder-eager" else found), note

    monkeypatch.setattr(StepCase, "prepare", limited)
    rows, session = measured(StepCase(tiny(LANGUAGE), "fp32", ["plain-compiled", "transponder-eager"], CPU))
    assert not session.failed
    assert [row["variant"] for row in rows] == ["plain-compiled"]
