"""What a run tells, in words."""

from __future__ import annotations

from tiny_runs import tiny_spec, train

from comt_cli.tasks import task_of
from comt_cli.training.progress import Listener, StepReport, outcome

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


def test_an_outcome_in_words():
    assert outcome(TEXT, DONE) == "perplexity 23.46, 61 s, 12,346 tok/s"
    assert outcome(TEXT, {**DONE, "perplexity": None}) == "perplexity beyond range, 61 s, 12,346 tok/s"
    assert outcome(PICTURES, IMAGES) == "accuracy 91.26 %, 61 s, 3,200 img/s"
    assert outcome(TEXT, DIVERGED) == "diverged at step 7"


def test_an_evaluation_tells_how_far_it_is(tiny_corpus, tmp_path):
    heard: list[tuple[int, int]] = []

    class Counts(Listener):
        def evaluated(self, done: int, total: int) -> None:
            heard.append((done, total))

    train(tiny_spec(tiny_corpus, steps=4, evaluation_batch_size=2), tmp_path, listener=Counts())
    total = heard[0][1]
    assert total > 1
    assert heard == [(done, total) for done in range(1, total + 1)]


def test_a_listener_by_itself_says_nothing(tiny_corpus, tmp_path, capsys):
    train(tiny_spec(tiny_corpus, steps=4), tmp_path)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
