"""Operations that have kernels, one folder each: definition and operator, C++, Triton; and the choice of kernels."""
