"""What residual connections do at the start, what of the chapter's numbers comes out again, and the verb's files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import nn
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.lab import networks
from comt_cli.lab.claims import claims_frame
from comt_cli.lab.networks import LINEAR_RELU, LLAMA, wirings
from comt_cli.lab.starts import starts

pytestmark = pytest.mark.usefixtures("quick_figures")

RESULTS = Path(__file__).parents[3] / "results" / "diagnose"
WIRINGS = wirings()
PRE, POST = WIRINGS["pre-norm"], WIRINGS["post-norm"]


def test_a_seed_gives_the_very_network_that_plain_pytorch_does():
    torch.manual_seed(7)
    linears = [nn.Linear(64, 64) for _ in range(3)]
    x = torch.randn(4, 64)
    h = x
    for linear in linears:
        h = h + torch.relu(linear(nn.functional.layer_norm(h, (64,))))
    network, ours, _ = LINEAR_RELU.build(PRE, 3, 7)
    assert_same_bits(ours, x, Reason.SAME_CALL)
    torch.testing.assert_close(network.streams(ours)[-1], h)


def test_the_traced_gradient_is_the_derivative():
    network, x, random = LINEAR_RELU.build(POST, 4, 3)
    network.module.double()
    x, random = x.double(), random.double()
    seen = networks.trace(network, x, random)
    direction = torch.randn_like(x)
    with torch.no_grad():
        ends = [(network.streams(x + sign * 1e-6 * direction)[-1] * random).sum() for sign in (1, -1)]
    (gradient,) = torch.autograd.grad((network.streams(x)[-1] * random).sum(), x)
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-6, (gradient * direction).sum(), rtol=1e-6, atol=1e-6)
    assert seen.gradients[0] == pytest.approx(gradient.norm().item())
    assert seen.output_gradient == pytest.approx(random.norm().item())


def test_what_is_the_identity_at_the_start():
    compared = {"rezero": WIRINGS["rezero"], "pre-norm": PRE, "comt": WIRINGS["comt"]}
    frame = networks.measured(compared, [LINEAR_RELU, LLAMA], [2], 3, [1])["identity"].set_index("connection")
    assert (frame.loc["rezero", ["linear-relu", "llama", "zero_branch"]] == 0).all()
    assert (frame.loc["pre-norm", ["linear-relu", "llama"]] > 0.01).all()
    assert frame.loc["pre-norm", "zero_branch"] == 0
    assert frame.loc["plain", "zero_branch"] > 0.5
    assert frame.loc["plain", "zero_branch_norm"] == 0
    assert frame.loc["comt"].isna().tolist() == [True, False, True, True]


@pytest.mark.slow
def test_what_of_the_chapter_reproduces():
    """As in the committed results; numbers to what fp32 sums in another order may make of them."""
    claims, committed = claims_frame().set_index("name"), pd.read_csv(RESULTS / "claims.csv").set_index("name")
    assert claims["verdict"].to_dict() == committed["verdict"].to_dict()
    for name, expected in (("floor", [3325.3]), ("thirty-residual", [189.8797, 202.074])):
        numbers = [float(each) for each in re.findall(r"[\d.]+", claims.loc[name, "ours"])[: len(expected)]]
        assert numbers == pytest.approx(expected, rel=1e-4), name


# ---- the verb


def run(*arguments: object):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_the_files(tmp_path):
    options = ("--connections", "pre-norm,rezero", "--branch", "linear-relu", "--depths", "2,4", "--seeds", "1,2")
    result = run(*options, "--methods", "pre-ln,hyper-connections,rezero", "--results", tmp_path)
    assert result.exit_code == 0, result.output
    out = tmp_path / "diagnose"
    files = {f"gradient-by-depth.{kind}" for kind in ("png", "pdf", "txt", "tex", "csv")} | {"diagnose.md", "start.md"}
    stems = ("gradient-by-loss", "activations-by-layer", "plain-against-residual", "claims", "outputs", "identity")
    files |= {f"{stem}.csv" for stem in (*stems, "start", "parameters")}
    assert {path.name for path in out.iterdir()} == files

    def rows_of(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((out / name).read_text(encoding="utf-8").splitlines()))

    by_depth = rows_of("gradient-by-depth.csv")
    found = {(row["setup"], row["connection"], row["depth"], row["seeds"]) for row in by_depth}
    assert found == {("linear-relu", name, at, "2") for name in ("pre-norm", "rezero", "plain") for at in ("2", "4")}
    passed = {row["connection"]: float(row["passed_mean"]) for row in by_depth}
    assert passed["rezero"] == 1 != passed["pre-norm"]
    assert {int(row["layer"]) for row in rows_of("activations-by-layer.csv")} == set(range(31))
    start = {row["method"]: row for row in rows_of("start.csv")}
    plain, hyper, rezero = (start[name] for name in ("pre-ln", "hyper-connections", "rezero"))
    assert (float(plain["difference"]), plain["parameters"], plain["own"], plain["dispersion"]) == (0, "0", "0", "")
    assert float(hyper["difference"]) < 1e-4
    assert float(rezero["difference"]) > 0.5
    # The scales of what is dynamic have no gradient while W is zero, nor have shares that are read while streams are
    # equal, since a norm follows: both from the second update on, but the first junction's, whose streams stay equal.
    assert (int(hyper["without_gradient"]), hyper["never"]) == (3 * 8, "1")
    assert float(hyper["dispersion_start"]) == pytest.approx(0, abs=1e-12)  # equal streams, but for rounding
    assert float(hyper["dispersion"]) > 1e-3


def started(*names: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    tables = starts([{"name": name} for name in names], 1)
    return tables["start"].set_index("method"), tables["parameters"].set_index(["method", "parameter"])


def test_initial_values_and_factors():
    start, parameters = started("highway", "rezero", "laurel-lr", "comt", "mhc", "sas-resnet")
    initial = parameters["start"]
    assert initial["highway", "transform_gate.bias"] == "-2"
    assert initial["highway", "transform_gate.weight"] == "0 ± 0.02"
    assert initial["laurel-lr", "low_rank.B"] == initial["rezero", "a"] == initial["mhc", "coefficients.b"] == "0"
    assert initial["sas-resnet", "beta_gate.output.bias"] == "-3"
    assert {*parameters.loc["comt"].index} == {"A", "B"}
    assert parameters.loc["comt", "tensors"].tolist() == [28, 28]
    factors = start["factors"]
    assert factors["rezero"] == "a 0"
    assert factors["highway"].startswith("gate 0.12 ± ")  # 1 / (1 + e^2)
    assert factors["comt"].startswith("scalar gate 0.5")
    assert factors["mhc"].endswith("write 1")


def test_a_model_wide_initialisation_changes_only_other_starts():
    start, _ = started("highway", "laurel-lr", "full-rank-gate", "rezero", "pre-ln", "grc")
    assert start.loc[["full-rank-gate", "rezero", "pre-ln", "grc"], "overwritten"].tolist() == [0, 0, 0, 0]
    assert start.loc["highway", "overwritten"] > 0.1  # the gates are 0.5 instead of 0.12
    assert start.loc["laurel-lr", "overwritten"] > 1e-3
    assert start.loc["laurel-lr", "difference"] == 0
    tables = starts([{"name": "hyper-connections", "dynamic": False}], 1)  # which learns tables of numbers, no matrices
    assert tables["start"]["overwritten"].tolist() == [0]


def test_the_effect_is_that_of_the_parameters_alone():
    """A low-rank map B A x with B back at 0 is none, whatever A is, and A alone does less."""
    start, parameters = started("laurel-lr", "pre-ln", "addition")
    effect, gradient = (parameters.loc["laurel-lr", key] for key in ("effect", "without_gradient"))
    assert effect["low_rank.B"] == pytest.approx(start.loc["laurel-lr", "effect"], rel=1e-9)
    assert 0 < effect["low_rank.A"] < effect["low_rank.B"]
    assert gradient.to_dict() == {"low_rank.A": 8, "low_rank.B": 0}  # while B is 0
    assert start.loc[["pre-ln", "addition"], "difference"].tolist() == [0, 0]
    assert start.loc[["pre-ln", "addition"], "effect"].isna().all()


def test_methods_alone(tmp_path):
    result = run("--connections", "none", "--methods", "addition,wider-as-mhc", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"start.csv", "parameters.csv", "start.md"}
    assert "| mlp.down.weight |" in (tmp_path / "new/start.md").read_text(encoding="utf-8").replace("\\", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--connections", "comt", "--branch", "llama,gelu-mlp"],
        ["--connections", "hyper-connections"],  # more than one stream
        ["--methods", "mch"],
        ["--connections", "none", "--methods", "none"],
        ["--depths", "50-5"],
        ["--depths", "deep"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_said_and_nothing_is_written(arguments, tmp_path):
    result = run(*arguments, "--results", tmp_path / "out")
    assert isinstance(result.exception, UserError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["hybrid-norm", "comt", "gated-norm"])
def test_a_setup_without_attention_refuses_what_it_would_leave_out(name):
    result = run("--connections", name, "--branch", "linear-relu")
    assert isinstance(result.exception, UserError)
    assert f"{name} has gates or norms of its own, for which only the branch llama has a place" in str(result.exception)
