"""`comt diagnose`, from its options to files."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.lab.diagnose.networks import PLAIN, RELU_MLP, SETUPS, wirings
from comt_cli.lab.diagnose.verb import _BYTES

pytestmark = pytest.mark.usefixtures("quick_figures")

KINDS = ("png", "pdf", "txt", "tex", "csv")
STEMS = ("gradient-by-depth", "gradient-by-loss", "activations-by-layer", "plain-against-residual")


def run(*arguments: object):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder and the output of one small diagnosis."""
    out = tmp_path_factory.mktemp("diagnosis") / "diagnose"
    options = ("--connections", "pre-norm,rezero", "--branch", "linear-relu", "--depths", "2,4", "--seeds", "1,2")
    methods = ("--methods", "pre-ln,hyper-connections,rezero")
    result = run(*options, *methods, "--width", 16, "--results", out.parent)
    assert result.exit_code == 0, result.output
    return out, result.output


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_it_writes_figures_tables_and_a_page_and_nothing_else(written):
    out, output = written
    files = {f"{stem}.{kind}" for stem in STEMS for kind in KINDS}
    assert {path.name for path in out.iterdir()} == files | {
        "claims.csv",
        "outputs.csv",
        "identity.csv",
        "start.csv",
        "diagnose.md",
    }
    assert all(path.stat().st_size > 0 for path in out.iterdir())
    assert str(out) in output.replace("\n", "")


def test_the_numbers_are_of_what_was_asked_for(written):
    out, _ = written
    rows = rows_of(out / "gradient-by-depth.csv")
    combinations = {(row["setup"], row["connection"], row["depth"], row["seeds"]) for row in rows}
    assert combinations == {
        ("linear-relu", name, depth, "2") for name in ("pre-norm", "rezero", "plain") for depth in ("2", "4")
    }
    passed = {row["connection"]: float(row["passed_mean"]) for row in rows}
    assert passed["rezero"] == 1
    assert passed["pre-norm"] != 1
    layers = [int(row["layer"]) for row in rows_of(out / "activations-by-layer.csv")]
    assert set(layers) == set(range(31))


def test_how_methods_start_is_measured(written):
    out, _ = written
    rows = {row["method"]: row for row in rows_of(out / "start.csv")}
    assert len(rows) == 3
    plain, hyper, rezero = (rows[name] for name in ("pre-ln", "hyper-connections", "rezero"))
    assert (float(plain["difference"]), plain["parameters"], plain["own"], plain["dispersion"]) == (0, "0", "0", "")
    assert float(hyper["difference"]) < 1e-4
    assert float(rezero["difference"]) > 0.5
    assert (hyper["published"], rezero["published"]) == ("Pre-LN", "the identity")
    # The scales of what is dynamic have no gradient while W is zero, nor have shares that are read while streams are
    # equal, since a norm follows: both from the second update on, but the first junction's, whose streams stay equal.
    assert int(hyper["without_gradient"]) == 3 * 8
    assert hyper["never"] == "1"
    assert float(hyper["dispersion_start"]) == pytest.approx(0, abs=1e-12)  # equal streams, but for rounding
    assert float(hyper["dispersion"]) > 1e-3
    moved = dict(kind.split() for kind in hyper["mixing_moved"].split(", "))
    assert moved.keys() == {"mix", "read", "write"}
    assert all(float(distance) > 1e-4 for distance in moved.values())
    assert (plain["asleep"], hyper["asleep"]) == ("", "1 without gradient")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--connections", "pre-norm,post-nrm"],
        ["--connections", "comt", "--branch", "llama,gelu-mlp"],
        ["--connections", "hyper-connections"],  # more than one stream
        ["--connections", "comt-pixel"],  # of images
        ["--branch", "lama"],
        ["--methods", "mch"],
        ["--depths", "0"],
        ["--depths", "50-5"],
        ["--depths", "deep"],
        ["--width", "20"],
        ["--width", "1120"],
        ["--width", "1600", "--depths", "5"],
        ["--seeds", "x"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_said_and_nothing_is_written(arguments, tmp_path):
    result = run(*arguments, "--results", tmp_path / "out")
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 2
    assert not (tmp_path / "out").exists()


def test_the_bound_on_the_width_counts_enough_weights():
    width = 256
    for setup in (*SETUPS.values(), RELU_MLP):
        for name, wiring in {**wirings(), **PLAIN}.items():
            if setup.fits(wiring):
                network, _, _ = setup.build(wiring, 2, 0, width)
                held = sum(parameter.nbytes for parameter in network.module.parameters())
                assert held < 1.02 * 2 * _BYTES * width**2, (setup.name, name)  # what grows with the width itself
