"""What the report shows of a run is what training writes: the two share nothing but the run directory."""

from __future__ import annotations

from tiny_runs import tiny_spec, train, write_corpus

from comt_cli.report.csv_tables import RESULT_KEYS


def test_every_key_that_is_shown_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    corpus = write_corpus(tmp_path / "texts")
    done = train(tiny_spec(corpus, steps=2, warmup_steps=0), tmp_path / "runs").result()
    diverged = train(tiny_spec(corpus, steps=3, warmup_steps=0, learning_rate=1e30), tmp_path / "runs").result()
    assert (done["state"], diverged["state"]) == ("done", "diverged")
    assert set(RESULT_KEYS) <= done.keys() | diverged.keys()
