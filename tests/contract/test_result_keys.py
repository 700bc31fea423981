"""Keys of a result that the report shows are those that training writes: the two share nothing but the directory."""

from __future__ import annotations

import pytest
from tiny_runs import image_spec, pair_spec, tiny_spec, train, write_corpus

SHORT = {"steps": 2, "warmup_steps": 1, "log_every": 1}
WILD = {"steps": 6, "warmup_steps": 1, "log_every": 1, "learning_rate": 1e30}
GERMAN = {"target": "de", "validation_pairs": 6, "test_pairs": 6}  # it alone has compounds to split
SPECS = {
    "train-lm": tiny_spec,
    "train-mt": lambda _, **train: pair_spec(data=GERMAN, **train),
    "train-resnet": lambda _, **train: image_spec(**train),
}
MORE = {"train-mt": {"average_last": 2, "average_every": 1}}


@pytest.mark.parametrize("command", SPECS)
def test_every_key_that_is_shown_is_written(command, tmp_path, monkeypatch):
    """Each is one of a done run or of one that diverged."""
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    corpus, of = write_corpus(tmp_path / "texts"), SPECS[command]
    done_spec = of(corpus, **SHORT | MORE.get(command, {}))
    directories = [train(spec, tmp_path / "runs") for spec in (done_spec, of(corpus, **WILD))]
    done, diverged = (directory.result() for directory in directories)
    assert (done["state"], diverged["state"]) == ("done", "diverged")
    assert set(done_spec.task.result_keys) <= done.keys() | diverged.keys()
    assert done_spec.task.unit.per_second in directories[0].timings()[-1]
