"""Runs of translators: stopped and resumed, also in the middle of translating; shared and divided; and what they end
with. Their weights begin far from the usual start, so that a few steps leave networks that say various things. Most of
them translate in one pass, in place of beam search, which takes four fifths of such a run."""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from dying import train_until_death
from tiny_runs import (
    assert_same_run,
    dataset_of,
    pair_spec,
    stopped_everywhere,
    train,
    training,
    untimed,
)
from worlds import run_together

from comt_cli.data.pairs.dataset import PairBatch, PairDataset
from comt_cli.data.split import IGNORE
from comt_cli.data.tokenizer import PAD
from comt_cli.errors import RunInterrupted
from comt_cli.generation.beam import Hypothesis, NotFinite
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.metrics import slot_accuracy
from comt_cli.training import encoder_decoder
from comt_cli.training.events import Evaluating, Event
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal
from comt_cli.training.tasks import TaskRun
from comt_cli.training.tasks.translation import TranslationRun

AVERAGE = {"average_last": 3, "average_every": 2, "evaluate_every": 4}
FIRST = 4
"""The first token that is no special one."""

ONCE = 20 * 7
"""Sentences that such a run translates: three times the validation set while it trains, then all three sets with the
mean of the weights, and the test set with the last."""


def place_far_from_the_start(run: TranslationRun) -> None:
    TaskRun.place(run)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(1.5)


@torch.no_grad()
def in_one_pass(model, source_BS, **options):
    """In place of beam search: behind each token of a source what the network finds most probable there."""
    tokens_BS = model(source_BS, source_BS)[..., FIRST:].argmax(-1) + FIRST
    lengths = (source_BS != PAD).sum(1).tolist()
    return [[Hypothesis(tuple(row[:count]), 0.0, 0.0)] for row, count in zip(tokens_BS.tolist(), lengths, strict=True)]


def arrange(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TranslationRun, "place", place_far_from_the_start)
    patch.setattr(encoder_decoder, "decode", in_one_pass)


@pytest.fixture(autouse=True)
def far_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(monkeypatch)


def count_sentences(patch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of sentences translated from now on, in each call."""
    found: list[int] = []
    real = encoder_decoder.decode
    patch.setattr(
        encoder_decoder, "decode", lambda model, BS, **more: (found.append(len(BS)), real(model, BS, **more))[1]
    )
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that was never stopped, with averaging."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        arrange(patch)
        sentences = count_sentences(patch)
        directory = train(pair_spec(**AVERAGE), tmp_path_factory.mktemp("undisturbed"))
    assert sum(sentences) == ONCE
    return directory


def outputs(directory: RunDirectory) -> dict[str, bytes]:
    """The translations, by their files' paths in the run."""
    folder = directory.path / "outputs"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.txt"))}


def assert_same_translations(directory: RunDirectory, other: RunDirectory) -> None:
    assert_same_run(directory, other)
    assert outputs(directory) == outputs(other)
    assert not list(directory.path.glob("weights-*.pt"))


def test_stopped_at_any_event_it_ends_the_same_and_translates_nothing_twice(expected, tmp_path, monkeypatch):
    """A start, 12 steps, evaluations at two of them, of the last weights, and of validation and both test sets."""
    spec, sentences = pair_spec(**AVERAGE), count_sentences(monkeypatch)
    assert stopped_everywhere(spec, tmp_path / "runs") > 6
    assert_same_translations(RunDirectory.of(tmp_path / "runs", spec), expected)
    assert sum(sentences) == ONCE


def train_far_from_the_start_until_death(*arguments) -> None:
    arrange(pytest.MonkeyPatch())
    train_until_death(*arguments)


MOMENTS = [
    ("before validation.txt is renamed", 1),  # of step 4
    ("before weights-12.pt is renamed", 1),
    ("before the final checkpoint is renamed", 1),  # after they were averaged
    ("before test.txt is renamed", 2),  # of the last weights
]


def test_killed_at_every_kind_of_moment(expected, nursery, tmp_path, monkeypatch):
    spec = pair_spec(**AVERAGE)
    monkeypatch.setattr("dying.train_until_death", train_far_from_the_start_until_death)
    directory = nursery.kill_at_each(MOMENTS, spec, tmp_path / "runs")
    assert nursery.run(spec, tmp_path / "runs") == 0
    assert_same_translations(directory, expected)


# ---- the same run, divided in other ways


def assert_equal_but_for_rounding(one: RunDirectory, other: RunDirectory) -> None:
    """Of two words that are equally probable to rounding either may be said: in one sentence of 20, then the scores
    differ, too."""
    texts = [{name: text.splitlines() for name, text in outputs(each).items()} for each in (one, other)]
    assert texts[0].keys() == texts[1].keys()
    for name, lines in texts[0].items():
        assert sum(mine != its for mine, its in zip(lines, texts[1][name], strict=True)) <= 1, name
    lines = [[*each.metrics(), untimed(each)] for each in (one, other)]
    for first, second in zip(*lines, strict=True):
        assert first.keys() == second.keys()
        for key in first.keys() - {"id", "processes", "evaluation"}:
            if texts[0] == texts[1] or not re.search("bleu|chrf|slot", key):
                is_number = isinstance(first[key], int | float)
                tolerance = 1e-6 if first["step"] == 1 else 1e-4
                expected = pytest.approx(first[key], rel=tolerance, nan_ok=True) if is_number else first[key]
                assert second[key] == expected, (key, first["step"])


@pytest.mark.slow
def test_two_processes_train_and_translate_as_one_does_and_go_on(nursery, tmp_path):
    spec = pair_spec(batch_size=2, **AVERAGE)
    alone = train(spec, tmp_path / "alone")
    arguments = (spec.model_dump_json(), str(tmp_path / "two"))
    together = RunDirectory.of(tmp_path / "two", spec)
    run_together(nursery, 2, share, *arguments, True)
    assert together.state() is RunState.unfinished
    parts = sorted(path.name for path in (together.path / "outputs/final").glob("test.part-*"))
    assert parts == ["test.part-0.jsonl", "test.part-1.jsonl"]
    run_together(nursery, 2, share, *arguments, False)
    assert_equal_but_for_rounding(alone, together)


def share(rank: int, spec_json: str, runs: str, is_stopped: bool) -> None:
    """Train with the other process, or until the second asks for a stop in the fifth evaluation, of the test set."""
    arrange(pytest.MonkeyPatch())
    spec, stop, begun = RunSpec.model_validate_json(spec_json), StopSignal(), []

    def listener(event: Event) -> None:
        if isinstance(event, Evaluating):
            begun.extend([event] if event.done == 0 else [])
            if rank and is_stopped and (len(begun), event.done) == (5, 2):
                stop.number = signal.SIGTERM

    with join_world("cpu") as world, pytest.raises(RunInterrupted) if is_stopped else contextlib.nullcontext():
        training(spec, Path(runs), world=world, listener=listener, stop=stop).run()


def test_micro_batches_change_rounding_alone(tmp_path):
    """Dropout is on: each pair has its own masks, whatever it stands beside."""
    whole = train(pair_spec(batch_size=2), tmp_path / "whole")
    halves = train(pair_spec(batch_size=2, micro_batch_size=1), tmp_path / "halves")
    assert_equal_but_for_rounding(whole, halves)
    losses = [[line["loss"] for line in each.metrics() if "loss" in line] for each in (whole, halves)]
    assert losses[0] != losses[1], "they were divided"


# ---- what is minimised, and what a result says


def log_probabilities(run: TranslationRun, batch: PairBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the targets, and the sum of the whole vocabulary's, at every place that counts."""
    with torch.no_grad():
        logits = run.model(torch.from_numpy(batch.source), torch.from_numpy(batch.target_in))
    target = torch.from_numpy(batch.target_out)
    logs, target = logits.double().log_softmax(-1)[target != IGNORE], target[target != IGNORE]
    return logs.gather(-1, target[:, None])[:, 0], logs.sum(-1)


def test_training_smooths_labels_as_tensor2tensor_does_and_evaluation_does_not(tmp_path):
    """0.9 for the target and 0.1 / (V - 1) for each of the others; validation is the likelihood of the target alone."""
    spec = pair_spec(steps=1, warmup_steps=1)
    run = training(spec, tmp_path)
    task = TranslationRun(spec, run.dataset, run.world)
    task.build()
    task.place()
    with task.train_batches(1, 0) as batches:
        ((batch,),) = [list(micro) for micro in batches]
    task.inputs(batch)  # dropout moves to the pairs
    chosen, all_words = log_probabilities(task, batch)
    smoothed = -(0.9 * chosen + 0.1 / (task.model.vocabulary - 1) * (all_words - chosen)).mean()
    result = run.run()
    assert run.directory.metrics()[0]["loss"] == pytest.approx(float(smoothed), rel=1e-6)

    run.model.eval()
    split = run.dataset.validation
    chosen = torch.cat([log_probabilities(run.task, split.batch(np.array([each])))[0] for each in range(len(split))])
    assert result["loss"] == pytest.approx(-float(chosen.mean()), rel=1e-6)
    assert result["target_perplexity"] == pytest.approx(math.exp(-chosen.mean()), rel=1e-5)


def test_where_a_search_finds_no_numbers_there_are_no_scores(tmp_path, monkeypatch):
    """The loss is of the references, and may be finite where longer hypotheses overflow."""

    def fails(*_: object, **__: object) -> None:
        raise NotFinite("the outputs of the network are not finite numbers")

    monkeypatch.setattr(encoder_decoder, "decode", fails)
    result = train(pair_spec(steps=2, warmup_steps=1), tmp_path).result()
    assert result["state"] == "done"
    assert result["test_loss"] > 0
    assert result["target_perplexity"] > 1
    assert not {"test_bleu", "bleu", "test_slot_accuracy"} & result.keys()
    assert not any(path.stat().st_size for path in tmp_path.rglob("*.part-0.jsonl"))


def test_scores_are_those_of_the_files(expected):
    """With the last weights beside their mean."""
    result = assert_scores(expected, dataset_of(pair_spec()), {"last_test_": "last/test"})
    assert result["averaged_steps"] == [8, 10, 12]
    assert result["last_test_loss"] != result["test_loss"]


def assert_scores(directory: RunDirectory, dataset: PairDataset, more: dict[str, str] | None = None) -> dict:
    """That result.json has what sacreBLEU makes of the files."""
    result = json.loads(directory.result_file.read_text())
    scorer = sacrebleu.BLEU()
    files = {"": "final/validation", "test_": "final/test", "unseen_": "final/unseen"} | (more or {})
    for prefix, path in files.items():
        lines = (directory.path / f"outputs/{path}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        texts = dataset.texts[path.partition("/")[2]]
        assert result[f"{prefix}bleu"] == scorer.corpus_score(lines, [list(texts.references)]).score
        assert result[f"{prefix}slot_accuracy"] == slot_accuracy(lines, texts.slots).value
        assert result[f"{prefix}evaluation"]["sentences"] == len(lines) == 20
        where = result[f"{prefix}evaluation"] if prefix else result
        assert where["signature"] == str(scorer.get_signature())
    lines = (directory.path / "outputs/final/test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    chrf = sacrebleu.CHRF().corpus_score(lines, [list(dataset.texts["test"].references)]).score
    assert result["test_chrf"] == chrf
    return result


def test_scores_belong_to_the_right_sentences(tmp_path, monkeypatch):
    """A translator that knows every second reference by heart, and repeats the other sources."""
    spec = pair_spec(steps=1, warmup_steps=1)
    dataset = dataset_of(spec)
    encode = dataset.tokenizer.encode_batch
    known = {}
    for texts in dataset.texts.values():
        for source, target in list(zip(encode(list(texts.sources)), encode(list(texts.references)), strict=True))[::2]:
            known[tuple(source)] = tuple(target)
    special = dataset.tokenizer.special

    def recall(model, source_BS, **options):
        sources = [tuple(i for i in row if i not in (special.pad, special.end)) for row in source_BS.tolist()]
        return [[Hypothesis(known.get(source, source), 0.0, 0.0)] for source in sources]

    monkeypatch.setattr(encoder_decoder, "decode", recall)
    directory = train(spec, tmp_path)
    result = assert_scores(directory, dataset)
    lines = (directory.path / "outputs/final/test.txt").read_text(encoding="utf-8").splitlines()
    assert lines[::2] == list(dataset.texts["test"].references)[::2]
    assert 30 < result["test_bleu"] < 100
    assert 50 <= result["test_slot_accuracy"] < 100
