"""The gates and launches of the operations' Triton kernels: fp32 arithmetic, the same bits each time."""
