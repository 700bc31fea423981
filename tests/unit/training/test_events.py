"""The events of a run, and its result in words."""

from __future__ import annotations

from tiny_runs import tiny_spec, train

from comt_cli.campaign.outcomes import result_text
from comt_cli.tasks import task_of
from comt_cli.training.events import Evaluating, StepReport

TEXT, PICTURES = task_of("train-lm"), task_of("train-resnet")
DONE = {"state": "done", "perplexity": 23.456, "train_seconds": 61.4, "tokens_per_second": 12345.6}
IMAGES = {"state": "done", "accuracy": 91.256, "train_seconds": 61.4, "images_per_second": 3200.4}
DIVERGED = {"state": "diverged", "diverged_at": 7}


def test_a_step_in_words():
    report = StepReport(step=10, loss=3.21987, per_second=12345.6, mfu=None, memory_bytes=None, unit=TEXT.unit)
    assert str(report) == "loss 3.220, 12,346 tok/s"
    images = StepReport(step=10, loss=2.302, per_second=3200.4, mfu=None, memory_bytes=None, unit=PICTURES.unit)
    assert str(images) == "loss 2.302, 3,200 img/s"
    full = StepReport(step=10, loss=3.2, per_second=1e6, mfu=0.4217, memory_bytes=3 * 2**29, unit=TEXT.unit)
    assert str(full) == "loss 3.200, 1,000,000 tok/s, MFU 42.2%, 1.5 GiB"


def test_a_result_in_words():
    assert result_text(TEXT, DONE) == "validation perplexity 23.46, 61 s, 12,346 tok/s"
    assert result_text(TEXT, {**DONE, "perplexity": None}) == "validation perplexity beyond range, 61 s, 12,346 tok/s"
    assert result_text(PICTURES, IMAGES) == "validation accuracy 91.26 %, 61 s, 3,200 img/s"
    few = {**DONE, "evaluation": {"samples": 6, "tokens": 200}}
    assert result_text(TEXT, few) == "validation perplexity 23.46 of 6 sequences alone, 61 s, 12,346 tok/s"
    assert "alone" not in result_text(TEXT, {**DONE, "evaluation": {"samples": 100}})
    assert result_text(TEXT, DIVERGED) == "diverged at step 7"


def test_an_evaluation_tells_how_far_it_is(tiny_corpus, tmp_path):
    events: list[object] = []
    train(tiny_spec(tiny_corpus, steps=4, evaluation_batch_size=2), tmp_path, listener=events.append)
    found = [event for event in events if isinstance(event, Evaluating)]
    total = found[0].total
    assert total > 1
    assert found == [Evaluating(done, total) for done in range(total + 1)]


def test_a_run_prints_nothing_by_itself(tiny_corpus, tmp_path, capsys):
    train(tiny_spec(tiny_corpus, steps=4), tmp_path)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
