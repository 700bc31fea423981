"""The ResNets' part of `comt bench`, from the command line to the files, on networks of a few hundred numbers; and what
is predicted and asked of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.benchmarks import image_shapes, image_variants
from comt_cli.benchmarks.image_roofline import (
    DESIGNS,
    ImageRoofline,
    Unit,
    image_predictions,
    predicted_image_step_ratio,
    roofline_of,
)
from comt_cli.benchmarks.image_shapes import IMAGE_SHAPES, ImageGoals, ImageShape, image_goals_of
from comt_cli.benchmarks.image_variants import ImageWorkshop, torchvision_resnet
from comt_cli.benchmarks.names import IMAGE_VARIANTS
from comt_cli.benchmarks.step_images import run_image_step_benchmark
from comt_cli.errors import UserError
from comt_cli.kernels import choice
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.flops import parameter_count
from comt_cli.models.kernels import use_kernels

pytestmark = pytest.mark.usefixtures("quick_figures")

MINUTE = ImageShape(pixels=8, batch=2, width=4, blocks=(1, 1))
CPU = torch.device("cpu")
H200 = "NVIDIA H200"
HAS_KERNELS = choice.cpu_obstacle() is None
HERE = [name for name in IMAGE_VARIANTS if HAS_KERNELS or "fused" not in name]


@pytest.fixture(autouse=True)
def _minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, and uncompiled: what the compiler makes of a model is tested where models are."""
    monkeypatch.setitem(image_shapes.IMAGE_SHAPES, "resnet18-b32", MINUTE)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)


def run(results: Path, *arguments: str) -> Result:
    more = ("--sizes", "resnet18-b32", "--rounds", "3", "--device", "cpu", "--results", str(results))
    return CliRunner().invoke(app, ["bench", "step", *arguments, *more])


def rows_of(results: Path) -> list[dict[str, str]]:
    (path,) = (results / "bench").glob("*/step-images.csv")
    return list(csv.DictReader(path.read_text().splitlines()))


def test_steps_of_resnets(tmp_path):
    result = run(tmp_path, "--precision", "fp32")
    assert result.exit_code == 0, result.output
    assert "torchvision: left out, torchvision has no ResNets of other widths" in result.output
    rows = {row["variant"]: row for row in rows_of(tmp_path)}
    assert list(rows) == [name for name in HERE if not name.startswith("torchvision")]
    best = rows["plain"]["best_plain"]
    plain = [name for name in image_variants.BEST_PLAIN if name in rows]
    assert float(rows[best]["step_ms"]) == min(float(rows[name]["step_ms"]) for name in plain)
    assert float(rows[best]["step_ratio_to_best_plain"]) == 1
    for name, row in rows.items():
        assert float(row["images_per_second"]) == pytest.approx(2000 / float(row["step_ms"]), rel=1e-2)
        assert float(row["saved_mib"]) > 0
        asked = {"window": "1.15", "pixel": "1.25"}.get(name.partition("-")[0], "") if "fused" in name else ""
        assert row["goal_step_ratio"] == asked, name
        assert row["compiled"] == ("whole" if name.endswith(("-compiled", "-fused")) else "no")
        assert row["goal_images_per_second"] == row["predicted_step_ratio"] == row["peak_mib"] == ""
    assert float(rows["pixel-eager"]["saved_mib"]) > float(rows["plain"]["saved_mib"])
    assert {path.name for path in (tmp_path / "bench").glob("*/*")} == {
        f"step-images.{kind}" for kind in ("csv", "md", "png", "pdf", "txt", "tex")
    }
    # Without --precision in fp32 and bf16; blocks compiled one by one.
    assert run(tmp_path, "--variants", "plain-compiled,pixel-compiled", "--compile", "block").exit_code == 0
    now = rows_of(tmp_path)
    assert {row["precision"] for row in now} == {"fp32", "bf16-mixed"}
    assert len(now) == len(rows) + 2
    assert {row["compiled"] for row in now if row["precision"] == "bf16-mixed"} == {"block"}


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-pure"])
@pytest.mark.parametrize("base", ["plain", "window", "pixel"])
def test_all_variants_of_a_network_train_the_same_weights_to_the_same_loss(base, precision):
    """In fp32 to rounding; in bf16 the loss is a mean over two images, and a wrong gate is off by tenths."""
    workshop = ImageWorkshop(MINUTE, precision, CPU, "whole")
    ready = [workshop.prepare(name) for name in HERE if name.startswith(base)]
    losses = [each.loss().item() for each in ready]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5 if precision == "fp32" else 0.05)
    assert len({tuple(map(id, each.parameters)) for each in ready}) == 1
    before = losses[-1]
    for _ in range(200):
        ready[0].step()
    assert ready[-1].loss().item() < before, "a step of one moves the others"
    assert workshop.images.is_contiguous(memory_format=torch.channels_last)
    kernels = [each for each in ready[0].parameters if each.dim() == 4]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in kernels)


def test_where_nothing_is_fused_a_fused_variant_is_left_out(monkeypatch):
    monkeypatch.setattr(
        image_variants,
        "use_kernels",
        lambda model, *_, compiled: use_kernels(model, "reference", CPU, torch.float32, compiled=compiled),
    )
    *news, rows = run_image_step_benchmark(MINUTE, "fp32", ["plain-compiled", "window-fused"], CPU, 3)
    assert [row.variant for row in rows] == ["plain-compiled"]
    assert any("window-fused: left out, nothing is fused here" in line for line in news)


@pytest.mark.parametrize("fails", ["pixel-eager", "pixel-compiled"])
def test_what_does_not_fit(monkeypatch, fails):
    prepare = ImageWorkshop.prepare

    def limited(self, variant):
        if variant == fails and self.shape.batch > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return prepare(self, variant)

    monkeypatch.setattr(ImageWorkshop, "prepare", limited)
    *news, rows = run_image_step_benchmark(MINUTE, "fp32", ["plain", "pixel-compiled", "pixel-eager"], CPU, 3)
    if fails == "pixel-eager":
        assert {(row.variant, row.shape) for row in rows} == {("plain", str(MINUTE)), ("pixel-compiled", str(MINUTE))}
        assert "resnet18-b32 fp32 pixel-eager: left out, does not fit with 2 images" in news
    else:
        assert {row.shape for row in rows} == {str(MINUTE.halved())}
        assert len(rows) == 3
        assert "too large: once more with 1 images a step" in news


@pytest.mark.parametrize("size", ["resnet18", "resnet50", "resnet50-224"])
def test_the_peer_is_the_same_network(size):
    shape = IMAGE_SHAPES[size]
    with torch.device("meta"):
        peer = torchvision_resnet(shape)
        shapes = {each.shape for each in peer(torch.empty(2, 3, shape.pixels, shape.pixels)).split(2)}
    ours = empty_network(shape.model(), wiring_of({"name": "addition"}), classes=shape.classes)
    assert shapes == {(2, shape.classes)}
    assert parameter_count(peer) == parameter_count(ours)


@pytest.mark.parametrize("named", [True, False])
def test_without_torchvision(tmp_path, monkeypatch, named):
    """Asked for by name: an error before anything is built. Otherwise its variants are left out, and all is well."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(image_variants.importlib, "import_module", missing)
    if named:
        result = run(tmp_path, "--variants", "plain,torchvision")
        assert isinstance(result.exception, UserError)
        assert result.exception.exit_status == 2
        assert "needs that library" in str(result.exception)
        return
    shape = replace(MINUTE, width=None, blocks=None)
    with pytest.raises(image_variants.Unavailable, match="needs that library"):
        ImageWorkshop(shape, "fp32", CPU, "whole").prepare("torchvision")


# ---- what is predicted


def test_resnet18_by_what_is_known_of_it():
    """3.34 GFLOPs an image in the three products of its 20 convolutions, whose outputs take 1.23 MB in bf16."""
    roofline = roofline_of(IMAGE_SHAPES["resnet18"])
    products = [2 * each.pixels * each.d_in * each.window**2 * each.d_out for each in roofline.units]
    assert 3 * sum(products) == pytest.approx(3.34e9, rel=5e-3)
    assert sum(2 * each.pixels * each.d_out for each in roofline.units) == pytest.approx(1.23e6, rel=5e-3)
    assert roofline.parameters == 11_173_962
    assert len(roofline.units) == 20
    assert [sum(each) for each in zip(*((u.adds, u.relu, u.modulated) for u in roofline.units), strict=True)] == [
        8, 17, 16,
    ]  # fmt: skip
    step, forward = roofline.plain()
    assert 2.5 < step / forward < 3.5
    # No slower than all at full speed one after the other, no faster than the slower of the two.
    assert (
        max(512 * 3.34e9 / 790e12, 512 * 14 * 1.23e6 / 4.3e12) < step < 512 * (3.34e9 / 790e12 + 18 * 1.23e6 / 4.3e12)
    )


def test_one_convolution_by_hand():
    """100 images of 32 x 32 pixels, 1x1 from 64 to 64 channels: the bytes decide. A pass: 13.1 MB, 3.05 us."""
    unit = Unit(1024, 64, 1024, 64, 1, adds=True, relu=True, modulated=True)
    roofline = ImageRoofline((unit,), 0, 100)
    one = 2 * 100 * 1024 * 64 / 4.3e12
    assert roofline.passes(1024, 64, 1) == pytest.approx(one)
    # forward: in, out; statistics; in, skip, out; the pool. Back: dW; (dy, y, z) twice, dz, dskip; the pool.
    step, forward = roofline.plain()
    assert forward == pytest.approx((2 + 1 + 3 + 1) * one)
    assert step == pytest.approx((2 + 1 + 3 + 1 + 2 + 6 + 2 + 1) * one)
    # 64 + 1 filters filled up to 72: 8 columns more in three products, and one of u read twice, and twice again
    more, more_forward = roofline.added("window", "fused")
    assert more_forward == pytest.approx((8 / 64 + 2 / 64) * one)
    assert more == pytest.approx((3 * 8 / 64 + 4 / 64) * one)
    assert roofline.added("window", "eager") == pytest.approx((9 * one, 3 * one))
    assert roofline.added("pixel", "eager") == pytest.approx((13 * one, 5 * one))
    assert roofline.added("pixel", "fused") == (0, 0)
    # 72 filters are two tiles of 64: of a 3x3 window, whose arithmetic decides, twice as much.
    wide = ImageRoofline((replace(unit, window=3),), 0, 100)
    (grown, _), (whole, _) = (wide.added("window", design) for design in ("fused", "fused-whole-tiles"))
    product = wide.convolution(wide.units[0], 64)
    assert product > 2 * one
    assert whole == pytest.approx(3 * product + 4 / 64 * one)
    assert grown == pytest.approx(3 * product * 8 / 64 + 4 / 64 * one)


def test_predictions():
    rows = image_predictions()
    assert {row.kind for row in rows} == {"predicted, not measured"}
    by = {(row.size, row.variant): row for row in rows}
    assert len(by) == 5 * (2 * len(DESIGNS) - 1)
    assert by["resnet18", "window-fused"].goal_step_ratio == 1.06
    assert by["resnet18", "pixel-eager"].goal_step_ratio is None
    assert by["resnet18", "pixel-fused"].goal_images_per_second == 60_000
    for size in image_shapes.IMAGE_GPU_SIZES:
        ratios = [by[size, f"window-{design}"].predicted_step_ratio for design in ("fused", "fused-whole-tiles")]
        assert 1 < ratios[0] < ratios[1]
        assert by[size, "pixel-eager"].predicted_step_ratio > by[size, "window-eager"].predicted_step_ratio
    fused = by["resnet50", "window-fused"].predicted_step_ratio
    assert predicted_image_step_ratio(H200, IMAGE_SHAPES["resnet50"], "bf16-mixed", "window-fused") == fused


@pytest.mark.parametrize(
    ("device", "size", "precision", "variant"),
    [
        ("NVIDIA H100", "resnet18", "bf16-mixed", "window-fused"),
        (H200, "resnet18-b32", "bf16-mixed", "window-fused"),
        (H200, "resnet18", "fp32", "window-fused"),
        (H200, "resnet18", "bf16-mixed", "window-compiled"),
        (H200, "resnet18", "bf16-mixed", "window-fused-eager"),
        (H200, "resnet18", "bf16-mixed", "plain-fused"),
    ],
)
def test_nothing_is_predicted_of_what_is_not_modelled(device, size, precision, variant):
    assert predicted_image_step_ratio(device, IMAGE_SHAPES[size], precision, variant) is None


# ---- what is asked

XEON = "Intel(R) Xeon(R) Processor, 2 threads"


@pytest.mark.parametrize(
    ("variant", "size", "device", "precision", "goals"),
    [
        ("window-fused", "resnet18", H200, "bf16-mixed", ImageGoals(step=1.06)),
        ("pixel-fused", "resnet50-224", H200, "bf16-pure", ImageGoals(step=1.05)),
        ("plain-fused", "resnet18", H200, "bf16-mixed", ImageGoals(images_per_second=60_000)),
        ("window-fused", "resnet18-b32", XEON, "fp32", ImageGoals(step=1.15)),
        ("pixel-fused-eager", "resnet18-b32", XEON, "bf16-mixed", ImageGoals(step=1.25)),
        # not judged: what is not fused or not the quickest, and what the goals are not about
        ("plain-compiled", "resnet18", H200, "bf16-mixed", ImageGoals()),
        ("plain-fused", "resnet18-b64", H200, "bf16-mixed", ImageGoals()),
        ("plain-fused", "resnet18-b32", XEON, "fp32", ImageGoals()),
        ("window-compiled", "resnet18", H200, "bf16-mixed", ImageGoals()),
        ("window-fused", "resnet18", H200, "fp32", ImageGoals()),
        ("window-fused", "resnet18", "NVIDIA A100-SXM4-80GB", "bf16-mixed", ImageGoals()),
        ("window-fused", "resnet18-b32", H200, "bf16-mixed", ImageGoals()),
    ],
)
def test_goals(variant, size, device, precision, goals):
    shape = str(IMAGE_SHAPES[size])
    assert image_goals_of(variant, shape, size, device, precision, "plain-fused") == goals


def test_images_per_second_are_asked_of_the_whole_batch():
    half = IMAGE_SHAPES["resnet18"].halved()
    goals = image_goals_of("plain-fused", str(half), half.size, H200, "bf16-mixed", "plain-fused")
    assert goals == ImageGoals()
