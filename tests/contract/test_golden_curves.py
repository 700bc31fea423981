"""Golden loss curves: what each method's smoke network does in its first 20 steps, as committed in tests/golden.

They pin numbers that no equation of ours pins: the order of random draws, of samples and of updates. What trains must
compute them whatever is moved, renamed or rebuilt. On the kind of processor that they were recorded on they hold to the
bit, with one thread; elsewhere libraries sum in another order, and they hold within `TOLERANCE`.

    python tests/contract/test_golden_curves.py --record      write them anew, where numbers are meant to change
    python tests/contract/test_golden_curves.py --add         record those that are not there yet

Curves that change on the machine that recorded them are recorded only after `NUMERICS` was raised: every run says by
which version it was trained.

The suite trains each method as it is published, most for the first half of their steps; the program trains its variants
too, and all of them to the end. Recording is a decision: the commit says why the numbers change.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":  # before torch and the others look where their caches are
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import isolation

    MADE = isolation.isolate()

import numpy as np
import pytest
import torch
from image_method_cases import IMAGE_METHODS, IMAGE_VARIANTS
from method_cases import METHODS, VARIANTS
from same_bits import Reason, assert_same_bits
from tiny_runs import StopAt, Stopped, image_spec, tiny_spec, train, write_corpus

from comt_cli.kernels import products
from comt_cli.kernels.cpu import build
from comt_cli.runs.directory import NUMERICS, RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import pick_device
from comt_cli.training.events import ignore

GOLDEN = Path(__file__).parents[1] / "golden" / "curves.json"
STEPS = 20
# The networks of the scale smoke (recipes/setups), on the documents and pictures of the tests: those never change.
LANGUAGE: dict[str, Any] = dict.fromkeys(("width", "ffn_width", "layers", "heads"))  # as the size `tiny` has them
IMAGES = {"size": "resnet18", "width": 8, "blocks": None}
COMMON = {"steps": STEPS, "log_every": 1, "save_every": 1000, "warmup_steps": 4}
THREE = ("comt", "transponder", "sdpa-gate")
ALL_STEPS = {*(f"train-lm/{name}" for name in THREE), "train-resnet/addition"}
"""What the suite trains to the end, so that the end of a run is pinned too: a method has done its part by step 10."""
OTHERS: dict[str, dict[str, Any]] = {
    "bf16-mixed": {"precision": "bf16-mixed", "model": {"layers": 1}},  # slow where there are no such instructions
    "fused": {"kernels": "fused"},
    "compiled": {"compile": True, "activation_checkpointing": True, "model": {"layers": 1}},  # each layer takes seconds
}
TOLERANCE = {"train-lm": 1e-4, "fused": 1e-4, "compiled": 1e-4, "train-resnet": 3e-2, "bf16-mixed": 2e-2}
"""Of each loss, relative, on another kind of processor. fp32: sums in another order differ by some 1e-7, of which
Adam's division by small second moments and 20 updates made 3e-6 at most under emulated SSE4. In a ResNet a ReLU near 0
passes on one processor and not on the other, and batch norm hands that on: 5e-3 at most. bf16 rounds to 8 bits, 4e-3
each time."""


def cases() -> dict[str, dict[str, Any]]:
    """Name of the case -> the arguments of its spec."""
    found = {f"train-lm/{name}": {"method": method} for name, method in METHODS.items()}
    found |= {f"train-resnet/{name}": {"method": method} for name, method in IMAGE_METHODS.items()}
    for kind, options in OTHERS.items():
        found |= {f"{kind}/{name}": {"method": METHODS[name], **options} for name in THREE}
    return found


def spec_of(name: str, corpus: str) -> RunSpec:
    options = cases()[name] | COMMON
    if name.startswith("train-resnet/"):
        return image_spec(model=IMAGES, learning_rate=3e-3, batch_size=32, **options)
    model = LANGUAGE | options.pop("model", {})
    return tiny_spec(corpus, model=model, batch_size=2, learning_rate=2e-3, **options)


def curve(name: str, corpus: str, folder: Path, *, half: bool = False, products_of_pytorch: bool = True) -> list[float]:
    """The losses of all steps, and the loss on the validation split after the last; of `half` the steps, no more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    spec = spec_of(name, corpus)
    try:
        none_fits = mock.patch.object(products, "fits", return_value=False)
        multiplied = none_fits if products_of_pytorch else contextlib.nullcontext()
        # A start is the first event.
        with multiplied, pytest.raises(Stopped) if half else contextlib.nullcontext():
            train(spec, folder, listener=StopAt(STEPS // 2 + 2) if half else ignore)
    finally:
        torch.set_num_threads(threads)
    lines = RunDirectory.of(folder, spec).metrics()[: STEPS // 2 if half else None]
    losses = [line["loss"] for line in lines if "loss" in line]
    return [*losses, *(line["validation_loss"] for line in lines if "validation_loss" in line)]


def kind_of_machine() -> dict[str, str]:
    """All that decides the last bits: the processor's family, the instructions that libraries may use, their versions;
    of our own kernels also the compiler."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    entries = dict(tuple(map(str.strip, line.split(":", 1))) for line in lines if ":" in line)
    processor = [entries.get(key, "") for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")]
    limits = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE")
    return {
        "processor": " ".join([platform.machine(), *filter(None, processor)]),
        "instructions": " ".join(
            [torch.backends.cpu.get_cpu_capability(), *(os.environ[name] for name in limits if name in os.environ)]
        ),
        # Two processors of one family and model, both with AVX-512, computed other bits.
        "flags": sha256(" ".join(entries.get(key, "") for key in ("flags", "cache size")).encode()).hexdigest()[:12],
        **({"rounding": os.environ["COMT_ROUNDING"]} if os.environ.get("COMT_ROUNDING") else {}),  # tests/rounding
        "torch": torch.__version__,
        "numpy": np.__version__,
        "compiler": build.find_compiler()[1].partition("\n")[0] if build.available() is None else "none",
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    return write_corpus(tmp_path_factory.mktemp("golden") / "texts")


@pytest.fixture(autouse=True)
def the_compilers_front_end(monkeypatch):
    """`aot_eager`: the graphs that are compiled, and none of a C++ compiler's minutes."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiler(function, backend="aot_eager", **how))
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("compiled/") else [])
        for name in cases()
        if name.split("/")[1] not in VARIANTS | IMAGE_VARIANTS
    ],
)
def test_the_curve_is_the_committed_one(name, corpus, tmp_path):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if name.startswith("fused/") and (missing := build.available()) is not None:
        pytest.skip(f"the C++ kernels cannot be built: {missing}")
    half = name.startswith("train-") and name not in ALL_STEPS
    found = curve(name, corpus, tmp_path, half=half)
    expected = golden["curves"][name][: STEPS // 2 if half else None]
    assert len(found) == len(expected) == (STEPS // 2 if half else STEPS + 1)
    # Curves that were added later, on another machine, say on which.
    if golden.get("elsewhere", {}).get(name, golden["machine"]) == kind_of_machine():
        assert_same_bits(found, expected, Reason.GOLDEN, name)
    else:
        assert found == pytest.approx(expected, rel=TOLERANCE[name.split("/")[0]])


@pytest.mark.parametrize("name", ["train-lm/comt", "train-lm/eau+grc"])
def test_the_curve_is_nearly_that_with_the_products_that_this_machine_takes(name, corpus, tmp_path):
    """oneDNN's, on some processors (`kernels.products`); elsewhere PyTorch's again."""
    pick_device("cpu")
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))["curves"][name][: STEPS // 2]
    found = curve(name, corpus, tmp_path, half=True, products_of_pytorch=False)
    assert found == pytest.approx(expected, rel=TOLERANCE["train-lm"])


def test_every_curve_is_committed_and_no_two_are_one():
    """Two methods that train alike would be one network under two names, or a curve that pins nothing."""
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert recorded["numerics"] == NUMERICS, "record the curves of this version"
    golden = recorded["curves"]
    assert golden.keys() == cases().keys()
    assert all(len(set(losses)) == STEPS + 1 for losses in golden.values())
    own = {name: losses for name, losses in golden.items() if not name.startswith("compiled/")}
    alike = [name for name, losses in own.items() if sum(losses == other for other in own.values()) > 1]
    assert alike == []


def changed_here(golden: dict[str, Any], curves: dict[str, list[float]], machine: dict[str, str]) -> list[str]:
    """Names of the curves that changed on the machine that recorded them, while the numerical version did not."""
    if golden["numerics"] != NUMERICS:
        return []
    return [
        name
        for name, losses in golden["curves"].items()
        # A curve that does not say which flags its processor had may be of this one.
        if golden.get("elsewhere", {}).get(name, golden["machine"]).items() <= machine.items()
        and curves.get(name, losses) != losses
    ]


def test_curves_that_change_need_another_version():
    here, there = ({"processor": name, "flags": "all"} for name in ("this", "that"))
    golden = {"numerics": NUMERICS, "machine": here, "elsewhere": {"b": there}, "curves": {"a": [1.0], "b": [2.0]}}
    assert changed_here(golden, {"a": [1.0], "b": [2.5], "c": [1.0]}, here) == []
    assert changed_here(golden, {"a": [1.5], "b": [2.0]}, here) == ["a"]
    assert changed_here(golden, {"a": [1.5], "b": [2.5]}, there) == ["b"]
    assert changed_here(golden | {"numerics": NUMERICS - 1}, {"a": [1.5]}, here) == []


def _lines(entries: dict[str, Any]) -> str:
    """As JSON, a line an entry."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in entries) + "\n}"


def record(add: bool) -> None:
    """Record the curves: all, or those that are missing."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if add and golden["numerics"] != NUMERICS:
        sys.exit(f"The curves are of numerical version {golden['numerics']}, not {NUMERICS}: --record them all.")
    compiler = torch.compile
    torch.compile = lambda function, **how: compiler(function, backend="aot_eager", **how)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "texts")
        curves = {}
        for name in cases().keys() - (golden["curves"].keys() if add else set()):
            curves[name] = curve(name, corpus, Path(folder) / name)
            print(f"{name:40} {curves[name][0]:.4f} to {curves[name][-2]:.4f}", flush=True)
    here = kind_of_machine()
    if changed := changed_here(golden, curves, here):
        sys.exit(f"{', '.join(changed)} changed: raise NUMERICS in comt_cli/runs/directory.py, then record.")
    elsewhere = golden.get("elsewhere", {}) | dict.fromkeys(curves, here) if add else {}
    every = golden["curves"] | curves if add else curves
    parts = [
        f'"numerics": {NUMERICS}',
        f'"machine": {json.dumps(golden["machine"] if add else here)}',
        *([f'"elsewhere": {_lines(elsewhere)}'] if elsewhere else []),
        f'"curves": {_lines({name: every[name] for name in cases()})}',
    ]
    GOLDEN.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        if {"--record", "--add"} & {*sys.argv}:
            record(add="--add" in sys.argv)
    finally:
        isolation.remove(MADE)
