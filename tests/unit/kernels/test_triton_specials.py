"""NaN and Inf travel through the Triton kernels as through the definition, and the tuned tiles give what small ones do.

A special value must reach what depends on it, so that a diverging run is seen, and nothing else: a masked lane that
multiplies its zero with it would spread it over a tile.
"""

from __future__ import annotations

import math
from dataclasses import replace

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

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.modulate.triton import modulate_backward
from comt_cli.kernels.triton import launch

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


@pytest.mark.parametrize("rank", [4, 9])
@SPECIAL
def test_special_second_layers(value, dtype, rank):
    """An infinite weight opens or shuts a gate for good: the output stays finite."""
    case = make(21, [37], rank, "both", dtype)
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
    """The tiles that GPUs get, wider than everything here."""
    call, widths = OPERATIONS[operation]
    assert_agree(call(make(40, widths, 8, "both", dtype)), TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["both", "comt"])
def test_rows_of_one_tile(kind, monkeypatch):
    """Decoding's few rows, a program each; and blocks of rows whose y stays in registers, or comes back from memory."""
    backward = launch.Options(16, 16, 4, 1)
    for tile in (launch.Options(1, 64, 4, 1), launch.Options(16, 64, 4, 1), launch.Options(16, 16, 4, 1)):
        monkeypatch.setattr(launch, "options", lambda kernel, *_, tile=tile: tile if kernel == "add_norm" else backward)
        assert_agree(add_norm(make(19, [37], 8, kind, torch.bfloat16)), TOLERANCE[torch.bfloat16])


def test_few_rows_have_a_program_each():
    few = launch.options("add_norm", 2048, 8, torch.bfloat16, 16)
    assert (few.rows, few.channels) == (1, 2048)
    assert launch.options("add_norm", 2048, 8, torch.bfloat16, 65536).rows > 1
    assert launch.options("add_norm", 2048, 64, torch.bfloat16, 16).rows > 1  # Wc would not fit into registers


def test_backward_programs_all_run_at_a_time():
    """As many as fit on a multiprocessor with every register taken, or those allowed; more without a channel gate."""
    cpu, tile = torch.device("cpu"), launch.Options(64, 16, 4, 2)
    gates = launch.Gates(Modulation(torch.zeros(16, 8), torch.zeros(1, 8), 2.0, 8, (True,)), [16])
    assert launch.backward_programs(cpu, tile, gates) == 2 * launch.PROCESSORS
    assert launch.backward_programs(cpu, replace(tile, registers=168), gates) == 3 * launch.PROCESSORS
    scalar = launch.Gates(Modulation(None, torch.zeros(1, 8), 2.0, 8, (True,)), [16])
    assert launch.backward_programs(cpu, tile, scalar) == 8 * launch.PROCESSORS
    count, blocks = launch.groups(torch.empty(65536, 1, device="meta"), tile, gates)
    assert count <= 264
    assert (count - 1) * blocks * 64 < 65536 <= count * blocks * 64


def test_tuned_tiles_are_what_the_compiler_takes():
    for kernel in ("modulate", "heads", "swiglu", "add_norm"):
        for direction in ("", "_backward"):
            for dtype in TOLERANCE:
                for rank in (1, 8, 9, 16, 17, 64, 128):
                    tile = launch.options(kernel + direction, 512, rank, dtype, 65536)
                    for size in (tile.rows, tile.channels):  # powers of two, and enough for the tensor cores
                        assert size >= launch.LEAST_DOT
                        assert size & (size - 1) == 0
