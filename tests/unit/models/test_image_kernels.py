"""A ResNet with its batch norms switched over to the kernel: the same training, and what is said of the choice."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from comt_cli.kernels import choice, measurements
from comt_cli.kernels.cpu import build
from comt_cli.kernels.processors import Device
from comt_cli.layers.convolution import ConvolutionNorm
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.build import empty_network
from comt_cli.models.kernels import ALONE, use_kernels
from comt_cli.models.resnet import ResNet
from comt_cli.tasks.settings.resnet import ResNetSettings

CPU = torch.device("cpu")
METHODS = {
    "plain": {"name": "addition"},
    "window": {"name": "comt-sliding-window", "ratio": 4},
    "pixel": {"name": "comt-pixel", "hidden": 2},
    "dropped gamma": {"name": "comt-pixel", "hidden": 2, "gamma": "dropped"},
    "rezero": {"name": "rezero"},
}


def network(method: str, size: str = "resnet18", blocks: tuple[int, ...] = (1, 1, 1)) -> ResNet:
    """Narrow blocks, all but the first of which change the shape."""
    settings = ResNetSettings(size=size, width=8, blocks=blocks)
    model = empty_network(settings, method_from(METHODS[method]).wiring(), classes=4).to_empty(device="cpu")
    initialise(model, 0)
    return model.to(memory_format=torch.channels_last).train()


def images(count: int = 6) -> torch.Tensor:
    x = torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(3))
    return x.contiguous(memory_format=torch.channels_last)


@pytest.fixture
def compiled_kernels() -> None:
    if reason := build.available():
        pytest.skip(reason)


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("size", ["resnet18", "resnet50"])
@pytest.mark.parametrize("method", METHODS)
def test_a_fused_network_trains_as_the_reference_does(method, size):
    """Logits, every gradient and the running statistics, in fp32. Each of up to ten norms divides by a deviation and
    rounds anew; 1e-4 of the largest gradient of a tensor holds, where a wrong formula is off by orders more."""
    reference = network(method, size)
    fused = copy.deepcopy(reference)
    choices = use_kernels(fused, "fused", CPU, torch.float32, compiled=False)
    assert all(each.fused for each in choices.values()), choices
    labels = torch.arange(6) % 4
    outputs = []
    for model in (reference, fused):
        logits = model(images())
        torch.nn.functional.cross_entropy(logits, labels).backward()
        outputs.append(logits)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    other = dict(fused.named_parameters())
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        scale = parameter.grad.abs().max().clamp_min(1e-4)
        assert (other[name].grad - parameter.grad).abs().max() <= 2e-4 * scale, name
    kept = dict(fused.named_buffers())
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(kept[name], buffer, rtol=1e-5, atol=1e-6, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(images()), reference.eval()(images()), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("method", ["plain", "window", "pixel"])
def test_under_autocast_it_computes_in_bf16(method):
    """bf16 keeps 8 bits: over the depth of the network a few per cent of the largest logit."""
    reference = network(method)
    fused = copy.deepcopy(reference)
    use_kernels(fused, "fused", CPU, torch.bfloat16, compiled=False)
    with torch.autocast("cpu", torch.bfloat16):
        found, exact = fused(images()), reference(images())
    assert found.dtype == exact.dtype
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()
    found.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in fused.parameters())
    assert all(parameter.grad.dtype == torch.float32 for parameter in fused.parameters())


@pytest.mark.usefixtures("compiled_kernels")
def test_it_is_compiled_in_one_piece():
    """The compiler's own backend would take a minute and add nothing: operators are opaque to it."""
    model = network("window", blocks=(1,))
    use_kernels(model, "fused", CPU, torch.float32, compiled=True)
    other = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    results = []
    for run, of in ((model, model), (compiled, other)):
        run(images()).square().sum().backward()
        results.append([p.grad for p in of.parameters()] + [b.clone() for b in of.buffers()])
    torch._dynamo.reset()
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4 * one.abs().max().item())


@pytest.mark.usefixtures("compiled_kernels")
def test_one_pixel_has_no_deviation():
    model = network("plain", blocks=(1,))
    use_kernels(model, "fused", CPU, torch.float32, compiled=False)
    with pytest.raises(ValueError, match="more than one pixel"):
        model(torch.zeros(1, 3, 1, 1))


def fused_units(model: ResNet) -> set[bool]:
    return {module.fused for module in model.modules() if isinstance(module, ConvolutionNorm)}


def test_what_is_asked_for_is_done_and_said():
    model = network("window")
    for wanted, training in (("reference", True), ("fused", False), ("auto", False)):
        choices = use_kernels(model, wanted, CPU, torch.float32, compiled=False, training=training)
        assert set(choices) == {"batch_norm", "window_norm"}
        assert fused_units(model) == {False}
    wide = use_kernels(model, "fused", CPU, torch.float64, compiled=False)
    assert "float64" in wide["window_norm"].reason
    assert fused_units(model) == {False}


def test_without_a_compiler_it_is_the_reference_and_says_so(monkeypatch):
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "no C++ compiler")
    model = network("pixel")
    choices = use_kernels(model, "fused", CPU, torch.float32, compiled=False)
    assert choices["pixel_norm"] == choice.Choice(False, "no C++ compiler")
    assert fused_units(model) == {False}


def test_unasked_a_narrow_network_keeps_the_reference():
    model = network("pixel")
    choices = use_kernels(model, "auto", CPU, torch.float32, compiled=False)
    assert fused_units(model) == {False}
    assert "64 channels and more" in choices["pixel_norm"].reason


def test_on_a_gpu_a_wide_pixel_gate_keeps_the_reference():
    def fused(gate: str, hidden: int) -> bool:
        where = torch.device("cuda")
        return choice.choose_norm("fused", where, torch.bfloat16, 64, gate, hidden, compiled=True).fused

    assert fused("pixel", 8)
    assert fused("window", 32)
    assert not fused("pixel", 9)


def test_gates_that_no_kernel_takes_are_named():
    """In a block that activates first, norm1 and conv2 stand alone."""
    settings = ResNetSettings(size="preact-resnet110", width=4, blocks=(1,))
    for method, alone in (("pixel", True), ("window", True), ("plain", False)):
        model = empty_network(settings, method_from(METHODS[method]).wiring(), classes=2)
        assert (ALONE in use_kernels(model, "fused", CPU, torch.float32, compiled=False)) == alone


STEPS = {  # milliseconds of steps that a kernel makes faster, hardly, or slower
    "plain": 100, "plain-fused-eager": 99, "plain-compiled": 90, "plain-fused": 95,
    "window-eager": 130, "window-fused-eager": 100, "window-compiled": 104, "window-fused": 100,
    "pixel-eager": 120, "pixel-fused-eager": 100,
}  # fmt: skip


@pytest.fixture
def write_steps(monkeypatch, tmp_path):
    """Writes times of steps on a CPU as the benchmark does, all that are known here."""
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    monkeypatch.setattr(choice, "device_here", lambda device: Device("cpu", "Some CPU", "AMD AVX2", 2))
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path])

    def write(times: dict[str, float], device: str = "Some CPU, 2 threads", size: str = "resnet18-b32") -> Path:
        path = tmp_path / device / "step-images.csv"
        is_new = not path.exists()
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            if is_new:
                file.write("device,device_type,device_class,shape,size,precision,variant,step_ms,torch,triton\n")
            for variant, milliseconds in times.items():
                where = f'"{device}",cpu,AMD AVX2,{size}-c10,{size}'
                file.write(f"{where},fp32,{variant},{milliseconds},{torch.__version__},\n")
        return path

    return write


def auto(gate: str, compiled: bool = False, device: str = "cpu", channels: int = 64) -> choice.Choice:
    where, hidden = torch.device(device), 2 * (gate != "none")
    return choice.choose_norm("auto", where, torch.float32, channels, gate, hidden, compiled=compiled)


@pytest.mark.parametrize(
    ("gate", "compiled", "speed", "fused"),
    [
        ("none", False, 100 / 99, False),
        ("none", True, 90 / 95, False),
        ("window", False, 1.3, True),
        ("window", True, 1.04, False),
        ("pixel", False, 1.2, True),
        ("both", False, 1.2, True),
    ],
)
def test_it_is_taken_unasked_where_steps_were_measured_to_be_faster(
    monkeypatch, write_steps, gate, compiled, speed, fused
):
    assert auto(gate, compiled).reason == (
        "no kernel was measured on this processor or another of its class, AMD AVX2: comt bench step"
    )
    write_steps(STEPS)
    found = auto(gate, compiled)
    assert (found.speed, found.fused) == (pytest.approx(speed), fused)
    assert not auto(gate, compiled, channels=63).fused
    assert not auto(gate, compiled, device="mps").fused
    if fused:
        monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "no C++ compiler")
        assert auto(gate, compiled) == choice.Choice(False, "no C++ compiler")
        without = f"{'window' if gate == 'window' else 'pixel'}-eager"
        said = f"{speed:.2f} times as fast as {without} on Some CPU, 2 threads (resnet18-b32, fp32)"
        assert str(found) == f"fused ({said})"


def test_the_least_gain_of_the_nearest_device_decides(write_steps):
    write_steps({"window-eager": 200, "window-fused-eager": 100}, device="Another processor, 4 threads")
    assert auto("window").speed == 2
    write_steps(STEPS)
    assert auto("window").speed == 1.3
    write_steps({"window-eager": 99, "window-fused-eager": 100}, size="resnet50")
    assert str(auto("window")).startswith("reference (no more than 0.99 times as fast as window-eager on")
    assert "pixel-fused in fp32 was not measured beside pixel-compiled" in auto("pixel", compiled=True).reason


def test_ones_own_file_does_not_hide_what_it_lacks(write_steps, monkeypatch, tmp_path):
    """Nor are times of two files compared: the other's are half as long. What it has comes first: 1.3 is less."""
    write_steps({"window-eager": 70, "window-fused-eager": 50, "pixel-eager": 1000})
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path, tmp_path / "shipped"])
    monkeypatch.setattr(measurements, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "shipped").mkdir()
    write_steps({name: time / 2 for name, time in STEPS.items()}, device="shipped/the same")
    path = tmp_path / "shipped/the same/step-images.csv"
    path.write_text(path.read_text().replace("shipped/the same", "Some CPU, 2 threads"))
    assert auto("window").speed == 1.4
    assert auto("pixel").speed == 1.2
    assert auto("window", compiled=True).speed == 1.04


def test_steps_too_noisy_to_decide_count_as_not_measured(write_steps):
    """Of one size; of all."""
    path = write_steps({"window-eager": 120, "window-fused-eager": 100})
    with_interval = path.read_text().replace("step_ms,", "step_ms,step_ms_uncertainty,step_ms_settled,")
    for uncertainty, speed in (("0.1", 1.2), ("0.2", None), ("", None)):
        path.write_text(with_interval.replace("0,2", f"0,{uncertainty},False,2"))
        assert auto("window").speed == speed
    assert auto("window").reason.endswith("too much noise to decide: comt bench step")
    with path.open("a") as file:
        file.write(
            path.read_text().split("\n", 1)[1].replace("resnet18-b32", "resnet50").replace(",,False", ",0.01,True")
        )
    assert auto("window").speed == 1.2


OLDER = """device,device_type,shape,size,precision,variant,step_ms,torch,triton
"Some CPU, 2 threads",cpu,a,resnet18-b32,fp32,window-eager,2,2.13,
"""
ADDED_TO = """device,device_type,device_class,shape,size,precision,variant,step_ms,torch,triton
"Some CPU, 2 threads",cpu,,a,resnet18-b32,fp32,window-eager,2,2.13,
"Some CPU, 2 threads",cpu,AMD AVX2,a,resnet18-b32,fp32,window-fused-eager,1,2.13,
"""


@pytest.mark.parametrize("text", [OLDER, ADDED_TO, ADDED_TO + "Some CPU,cpu,AMD AVX2,a,resn", None])
def test_a_damaged_file_of_steps_is_told(write_steps, text):
    path = write_steps({"window-eager": 0})
    if text is not None:
        path.write_text(text)
    assert auto("window").reason.endswith(f"({path} is damaged)")


def test_pure_bf16_is_not_how_resnets_are_trained(write_steps):
    path = write_steps({"window-eager": 2, "window-fused-eager": 1})
    path.write_text(path.read_text().replace("fp32", "bf16-pure"))
    assert measurements.measurements(measurements.STEP_FILE) == ([], [])
