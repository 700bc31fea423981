"""How many times as fast batched products attend as PyTorch's fused attention does, in bf16 on this processor.

Of a layer's forward and backward pass, causal, both forms in turns: the ratio of the 20th percentiles of their times.
Prints the table of results/bench/README.md, a column for each number of threads:

    python tests/unit/kernels/attend_times.py [--threads 1,2] [--seconds 6]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from comt_cli.kernels.attend import _by_batched_products
from comt_cli.kernels.processors import processor_class, processor_name

SHAPES = (
    *((16, 4, 128, 64), (16, 4, 128, 32), (32, 4, 96, 24)),
    *((64, 2, 32, 16), (8, 4, 256, 64), (2, 8, 512, 64), (4, 4, 1024, 64)),
)
"""Batch, heads, tokens, width of a head."""


def ratio(shape: tuple[int, ...], seconds: float) -> float:
    """Of the time of fused attention to that of batched products."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, G = (torch.randn(shape, generator=generator).bfloat16() for _ in range(4))
    for each in (q, k, v):
        each.requires_grad_()

    def fused() -> object:
        return torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), G)

    def batched() -> object:
        return torch.autograd.grad(_by_batched_products(q, k, v, None, causal=True), (q, k, v), G)

    times: dict[Callable[[], object], list[float]] = {fused: [], batched: []}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for form, taken in times.items():
            began = time.perf_counter()
            form()
            taken.append(time.perf_counter() - began)
    of_fused, of_batched = (statistics.quantiles(taken, n=5)[0] for taken in times.values())
    return of_fused / of_batched


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Time fused attention and batched products in turns, in bf16.")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=6, help="for each shape")
    chosen = parser.parse_args()
    threads = [int(each) for each in chosen.threads.split(",")]
    print(f"{processor_name()} ({processor_class()}), PyTorch {torch.__version__}\n")
    print(f"| batch, heads, tokens, head | {' | '.join(f'{n} threads' for n in threads)} |")
    print("| --- |" + " ---: |" * len(threads))
    for shape in SHAPES:
        cells = []
        for n in threads:
            torch.set_num_threads(n)
            cells.append(f"{ratio(shape, chosen.seconds):.1f}")
        print(f"| {', '.join(map(str, shape))} | {' | '.join(cells)} |", flush=True)
