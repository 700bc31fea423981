"""What the operations in C++ share, for fp32 and bf16 tensors on a CPU: the build, the calls, and the gates.

Compiled on first use (`build`). Every function computes in fp32 and returns the gradients of parameters in fp32. For
one number of threads the same bits come out every time.

Raises:
    TypeError: tensors of another type than fp32 or bf16.
    ValueError: shapes that do not fit together, or a last dimension with a stride (those of gates' matrices may).
    Unavailable: the kernels cannot be compiled here.
    MemoryError: not enough memory for the sums of all threads.
"""
