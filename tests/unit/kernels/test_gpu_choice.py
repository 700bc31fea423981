"""The choice on a GPU: of what was measured, what counts first; and the tiles that kernels are launched with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from choice_cases import ALL_THREE, CUDA, ON_H200, SLOW, ask

from comt_cli.kernels import choice, measurements
from comt_cli.kernels.choice import Choice
from comt_cli.kernels.triton import tiles

pytestmark = pytest.mark.usefixtures("shipped")
TILES = "swiglu channel 688: 16 64 1 0; swiglu_backward channel 688: 16 64 1 8 255"
TUNED = measurements.tiles_of(TILES)


@pytest.fixture
def shipped(machine, monkeypatch, tmp_path):
    """There is a folder of measurements that came with the program beside the user's own."""
    monkeypatch.setattr(measurements, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own", tmp_path / "shipped"])


@pytest.mark.parametrize("second", [("own", {"torch": "1.13.1"}), ("own", {"triton": "0.1"}), ("shipped", {})], ids=str)
@pytest.mark.parametrize("first", range(3))
def test_what_counts_of_a_gpu_first(measured, first, second):
    """This machine's exact key; such a card under whatever versions; what came with the program for its class. Each is
    taken where those before it are missing, also where those behind it are nearer in shape."""
    entries = [("own", {}), second, ("shipped", {"device": "NVIDIA H100"})][first:]
    for number, (root, changes) in enumerate(entries):
        shape = {"gates": f"transponder-r{8 if number else 7}", "tokens": 512 if number else 999}
        times = {"reference": 9.0, "reference-compiled": 3.0 - number, "fused": 1.0}
        measured(({**ON_H200, **shape, **changes}, times), folder=f"{number}", root=root)
    assert ask(device=CUDA, tokens=512).speed == 3


@pytest.mark.parametrize(
    ("root", "changes"),
    [
        ("own", {"kernel_hash": "another"}),
        ("own", {"kernel_hash": ""}),  # of an older version
        ("shipped", {"device": "NVIDIA A100", "device_class": "sm_80"}),
        ("own", {"width": 1040}),
        ("own", {"gates": "comt-r8"}),
        ("own", {"dtype": "bf16"}),
        ("own", {"tokens": 100}),
    ],
    ids=str,
)
def test_what_says_nothing_about_a_gpu(measured, root, changes):
    measured(({**ON_H200, **changes}, ALL_THREE), root=root)
    found = ask(device=CUDA, tokens=512)
    assert not found.fused
    assert found.reason.endswith(": comt bench kernels --tune")
    measured((ON_H200, ALL_THREE), folder="right", root=root)
    assert ask(device=CUDA, tokens=512).fused


def test_the_very_number_of_tokens_decides_on_a_gpu_or_else_the_most(measured):
    measured(({**ON_H200, "tokens": 1024}, ALL_THREE), ({**ON_H200, "tokens": 4096}, SLOW), root="own")
    assert [ask(device=CUDA, tokens=tokens).fused for tokens in (256, 1024, 2000, 16384)] == [True, True, False, False]
    assert ask(device=CUDA).speed == 0.6, "the most of them where it is not known how many there will be"
    assert ask(device=CUDA, tokens=255).speed is None


@pytest.mark.parametrize("wanted", ["auto", "fused"])
def test_kernels_are_launched_as_they_were_measured(measured, monkeypatch, wanted):
    """Also where they are slower and wanted all the same. The tiles of other choices stay, or are forgotten."""
    used = []
    monkeypatch.setattr(tiles, "use", lambda tuned: used.append(dict(tuned)))
    measured(({**ON_H200, "tiles": TILES}, ALL_THREE), root="own")
    found = ask(wanted, device=CUDA)
    assert found.tiles == TUNED
    assert measurements.tiles_text(found.tiles) == TILES
    another = Choice(True, "for the test", tiles=((("heads", "none", 64), tiles.Tile(1, 2, 4)),))
    choice.use_tiles([another], only=True)
    choice.use_tiles([found, Choice(True, "as asked"), replace(another, fused=False)])
    choice.use_tiles([found], only=True)
    assert used == [dict(another.tiles), dict(another.tiles + TUNED), dict(TUNED)]
    measured(({**ON_H200, "tiles": TILES}, SLOW), root="own")
    assert (ask(wanted, device=CUDA).tiles, ask(wanted, device=CUDA).fused) == (TUNED, wanted == "fused")


def test_tiles_that_cannot_be_read_are_damage(measured):
    for text in ("swiglu channel 688", "swiglu wide 688: 1 2 3", "swiglu channel 688: 1", "swiglu channel 688: 1 2 x"):
        path = measured(({**ON_H200, "tiles": text}, ALL_THREE), root="own")
        assert measurements.measurements() == ([], [path])
