"""What was counted is remembered: by all that it depends on, whatever becomes of the file, and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import image_spec, tiny_spec, write_corpus
from typer.testing import CliRunner

from comt_cli import methods as methods_room
from comt_cli.app import app
from comt_cli.models import accounting
from comt_cli.models.accounting import cost_of, network_of, to_count, total_flops
from comt_cli.verbs.plan import plan_recipe


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    accounting._COUNTED.clear()
    yield
    accounting._COUNTED.clear()


def anew() -> None:
    """As a new process finds it."""
    accounting._COUNTED.clear()


def test_a_network_is_counted_once(monkeypatch):
    spec = image_spec(method="comt-pixel")
    assert [one.id for one in to_count([spec, image_spec(method="comt-pixel", seed=2)])] == [spec.id]
    cost = cost_of(spec)
    anew()
    monkeypatch.setattr("comt_cli.models.accounting.count", None)
    assert cost_of(spec) == cost
    assert list(to_count([spec])) == []


def test_the_key_has_all_that_a_cost_depends_on(tmp_path):
    corpus = write_corpus(tmp_path / "texts")
    changes = [
        *({}, {"method": "pre-ln"}, {"model": {"layers": 3}}, {"data": {"sequence_length": 32}}),
        *({"data": {"tokenizer": "sentencepiece", "vocabulary": 300}}, {"activation_checkpointing": True}),
    ]
    specs = [*(tiny_spec(corpus, **each) for each in changes), image_spec(), image_spec(model={"width": 6})]
    assert len({network_of(spec) for spec in specs}) == len(specs)
    assert network_of(tiny_spec(corpus, seed=2, steps=31)) == network_of(specs[0])


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe not JSON\n", b'{"key": 1}\n[]\n7\n', b"[" * 100_000])
def test_a_damaged_file_is_counted_anew(damage):
    spec = image_spec()
    cost = cost_of(spec)
    (path,) = (Path(os.environ["COMT_CACHE"]) / "costs").rglob("*.json")
    for broken in (damage, path.read_bytes()[:20]):
        path.write_bytes(broken)
        anew()
        assert list(to_count([spec])) == [spec]
        assert cost_of(spec) == cost
        anew()
        assert list(to_count([spec])) == []


def test_another_method_file_or_pytorch_is_another_version(tmp_path, monkeypatch):
    def version() -> str:
        accounting.code_version.cache_clear()
        return accounting.code_version()

    before = version()
    monkeypatch.setattr(methods_room, "__path__", [*methods_room.__path__, str(tmp_path)])
    assert version() == before
    (tmp_path / "mine.py").write_text("A = 1\n")
    first = version()
    (tmp_path / "mine.py").write_text("A = 2\n")
    second = version()
    monkeypatch.setattr(accounting, "torch_build", lambda: "__version__ = '9'")
    assert len({before, first, second, version()}) == 4
    monkeypatch.undo()
    assert version() == before


def test_a_known_plan_is_shown_without_torch_and_numpy(tmp_path, monkeypatch):
    """The second call of the same plan imports neither, and prints the same."""
    code = (
        "import sys; from comt_cli.app import app; sys.argv[1:] = {}\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print([name for name in ('torch', 'numpy') if name in sys.modules], file=sys.stderr)"
    )
    rows, corpus = "pre-ln,pre-ln+comt", f"data.corpus={write_corpus(tmp_path / 'texts')}"
    arguments = ["show", "comt/table3", "--rows", rows, "--set", corpus, "--json", "--runs", str(tmp_path / "runs")]
    first = CliRunner().invoke(app, arguments)  # which counts
    command = [sys.executable, "-c", code.format(arguments)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert again.stderr.splitlines()[-1] == "[]"
    shown = json.loads(first.stdout)
    assert json.loads(again.stdout) == shown
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "other"))
    anew()
    specs = plan_recipe("comt/table3", "smoke", [corpus], rows=rows).specs
    for planned, printed in zip(specs, shown, strict=True):
        cost = cost_of(planned)
        assert (cost.parameters, cost.extra_parameters) == (printed["parameters"], printed["extra_parameters"])
        assert total_flops(planned) == printed["flops"]
