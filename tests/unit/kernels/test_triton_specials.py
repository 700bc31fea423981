"""NaN and Inf travel through the Triton kernels as through the definition, and the tuned tiles give what small ones do.

A special value must reach what depends on it, so that a diverging run is seen, and nothing else: a masked lane that
multiplies its zero with it would spread it over a tile.
"""

from __future__ import annotations

import math

import pytest
import torch
from same_bits import same_integers
from triton_cases import (
    DEVICE,
    TOLERANCE,
    add_norm,
    assert_agree,
    assert_same_specials,
    heads,
    interpreted_only,
    make,
    modulate,
    swiglu,
)

from comt_cli.kernels.modulate.triton import modulate_backward
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.tiles import TILES, Tile

# NumPy, which interprets, says that 0 * Inf is invalid and that exp overflows; both are the subject here.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")

SPECIAL = pytest.mark.parametrize(
    ("value", "dtype"), [(math.nan, torch.float32), (math.inf, torch.bfloat16), (-math.inf, torch.float32)], ids=str
)
OPERATIONS = {
    "modulate": (modulate, [19, 5]),
    "heads": (lambda case: heads(case, 6, 7), [18, 6, 6]),
    "swiglu": (swiglu, [19, 19]),
    "add_norm": (add_norm, [19]),
}


@SPECIAL
@pytest.mark.parametrize("operation", OPERATIONS)
def test_special_activations(operation, value, dtype):
    call, widths = OPERATIONS[operation]
    for column in (5, sum(widths) - 1) if operation != "heads" else (sum(widths) - 1,):  # v: the last of its columns
        case = make(21, widths, 4, "both", dtype)
        case.product[3, column] = value
        mine, right = call(case)
        assert_same_specials((mine, right))
        assert not all(tensor.isfinite().all() for tensor in mine.values())


@SPECIAL
def test_special_activations_that_are_turned(value, dtype):
    """The backward pass reads q as turned, where a special value has spread to its partner: dWc shows both of them.

    All else is as it should be; in the row of du, which is lost in any case, infinities may have become NaN.
    """
    case = make(21, [36, 24, 24], 4, "both", dtype)
    case.product[3, 5] = value
    mine, right = heads(case, 12, 7)
    outputs = ({name: tensors[name] for name in "012"} for tensors in (mine, right))
    assert_same_specials(tuple(outputs))
    lost = {name: ~tensor.isfinite() for name, tensor in mine.items()}
    assert same_integers(lost["dproduct"], ~right["dproduct"].isfinite())
    assert lost["dproduct"].any(1).nonzero().tolist() == [[3]]
    assert (~right["dWc"].isfinite()).any(1).nonzero().tolist() == [[5]]
    assert lost["dWc"].any(1).nonzero().tolist() == [[5], [11]]
    assert same_integers(lost["dws"], ~right["dws"].isfinite())


@SPECIAL
@pytest.mark.parametrize("operation", OPERATIONS)
def test_special_bottlenecks(operation, value, dtype):
    call, widths = OPERATIONS[operation]
    case = make(21, widths, 4, "both", dtype)
    case.product[3, sum(widths) + 1] = value
    assert_same_specials(call(case))


@SPECIAL
def test_special_second_layers(value, dtype):
    """An infinite weight opens or shuts a gate for good: the output stays finite."""
    case = make(21, [37], 4, "both", dtype)
    case.gates.Wc[5, 1] = value
    mine, right = modulate(case)
    assert_same_specials((mine, right))
    assert mine["0"].isfinite().all() == (not math.isnan(value))


def test_special_gradients():
    case = make(21, [37], 4, "both", torch.float32)
    G = case.random(21, 37)
    G[2, 3] = math.inf
    dproduct, dWc, dws = modulate_backward(G, case.product, case.gates, case.widths)
    assert same_integers((~dproduct.isfinite()).any(1).nonzero().flatten(), torch.tensor([2], device=DEVICE))
    assert same_integers((~dWc.isfinite()).any(1).nonzero().flatten(), torch.tensor([3], device=DEVICE))
    assert not dws.isfinite().any()


@interpreted_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_tuned_tiles(operation, dtype):
    """The tiles that GPUs get, most of them wider than everything here."""
    call, widths = OPERATIONS[operation]
    assert_agree(call(make(40, widths, 8, "both", dtype)), TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["both", "comt"])
@pytest.mark.parametrize("rows", [19, 70])
def test_few_rows_and_many(kind, rows):
    """Those of decoding have a program each; others blocks, whose y comes back from memory with a channel gate."""
    assert_agree(add_norm(make(rows, [37], 8, kind, torch.bfloat16)), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize(("kernel", "kind"), TILES)
def test_every_tile(kernel, kind, monkeypatch):
    """All that are tried on a user's card."""
    call, widths = OPERATIONS[kernel.removesuffix("_backward")]
    for each in TILES[kernel, kind]:
        monkeypatch.setitem(TILES, (kernel, kind), (each,))
        gates = {"channel": "both", "scalar": "comt", "none": "both"}[kind]
        case = make(70, widths, 8, gates, torch.bfloat16, gated=[kind != "none"] * len(widths))
        assert_agree(call(case), TOLERANCE[torch.bfloat16])


def test_walkers_fill_a_gpu():
    """As many programs as are resident, where they share row blocks; without residents one for every tile."""
    rows = torch.empty(65536, 1, device="meta")
    assert launch.groups(rows, Tile(32, 64, 2, 4), 22) == (24, 86)  # 24 x 22 = 528 = 4 x 132
    assert launch.groups(rows, Tile(8, 512, 4), 3) == (8192, 1)
    assert launch.groups(rows[:0], Tile(32, 64, 2, 4), 22) == (0, 1)
    many = torch.empty(800_000, 1, device="meta")
    assert launch.groups(many, Tile(8, 512, 4), 3) == (50_000, 2)  # a grid takes 65,535


def test_wider_channel_gates_are_refused():
    with pytest.raises(ValueError, match="channel gate of rank 9: the kernels take at most 8"):
        modulate(make(3, [19], 9, "channel", torch.float32))


def test_tiles_are_what_the_compiler_takes():
    """Powers of two; with a channel gate 16 rows a warp, and never the four warps of a warp group's product."""
    for (_, kind), tiles in TILES.items():
        for each in tiles:
            assert each.rows & (each.rows - 1) == each.channels & (each.channels - 1) == 0
            if kind == "channel":
                assert each.rows == 16 * each.warps < 64
                assert each.channels % 64 == 0
