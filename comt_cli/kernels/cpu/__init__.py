"""What the operations in C++ share, for fp32 and bf16 tensors on a CPU: the build, the calls, and the gates.

Compiled on first use (`build`). Every function computes in fp32 and returns the gradients of parameters in fp32. For
one number of threads the same bits come out every time.
"""
