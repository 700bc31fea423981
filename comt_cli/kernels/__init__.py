"""The operations that have kernels, a folder each: definition and operator, C++, Triton; and the choice of kernels."""
