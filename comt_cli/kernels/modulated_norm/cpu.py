"""`modulated_norm` in C++, for fp32 and bf16 tensors on a CPU: definition in `kernels/modulated_norm/__init__.py`.

All arithmetic is fp32. For one number of threads the same bits come out every time.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import row, run, type_code

_POINTERS = "product u skip dy y window A b weight bias mean var y_out dproduct du dskip dwindow dA db dweight dbias"
_NUMBERS = (
    "rows channels window_width pixel_width product_stride skip_stride dy_stride y_stride dproduct_stride "
    "u_row u_column du_row du_column"
)


class _Arguments(ctypes.Structure):  # NormArguments in modulated_norm.cpp
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
        *((name, ctypes.c_int64) for name in _NUMBERS.split()),
        ("type", ctypes.c_int32),
        ("u_type", ctypes.c_int32),
        ("relu", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    )


class _Call:
    """The arguments of one call, which keep what they point to alive."""

    def __init__(
        self,
        product_PK: Tensor,
        u_Ph: Tensor | None,
        window_h: Tensor | None,
        A_rC: Tensor | None,
        b_r: Tensor | None,
        weight_C: Tensor | None,
        channels: int,
        relu: bool,
        epsilon: float,
    ) -> None:
        if (A_rC is None) != (b_r is None):
            raise ValueError("a pixel gate has both matrices, A and b")
        self.kept: list[Tensor] = []
        self.rows, self.channels, self.dtype = len(product_PK), channels, product_PK.dtype
        h, r = (0 if each is None else each.numel() for each in (window_h, b_r))
        columns = channels + (h if u_Ph is None else 0)
        if self.rows < 1 or product_PK.shape[1] < columns:
            raise ValueError(f"a product of the shape {tuple(product_PK.shape)} for {columns} columns")
        fields = self.fields = _Arguments(
            rows=self.rows, channels=channels, window_width=h, pixel_width=r, relu=relu, epsilon=epsilon
        )
        fields.type = type_code(product_PK)
        fields.product, fields.product_stride = row(
            product_PK, self.rows, product_PK.shape[1], self.dtype, "the product"
        )
        if window_h is not None:
            u_Ph = product_PK[:, channels:columns] if u_Ph is None else u_Ph
            if u_Ph.shape != (self.rows, h):
                raise ValueError(f"u has the shape {tuple(u_Ph.shape)}, not {(self.rows, h)}")
            fields.u, fields.u_type = u_Ph.data_ptr(), type_code(u_Ph)
            fields.u_row, fields.u_column = u_Ph.stride()
        self.parameter("window", window_h, (h,))
        self.parameter("A", A_rC, (r, channels))
        self.parameter("b", b_r, (r,))
        self.parameter("weight", weight_C, (channels,))

    def parameter(self, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
        """Pass a parameter, or nothing, in fp32 with its elements in a row."""
        if tensor is None:
            return
        if tensor.shape != shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, not {shape}")
        self.kept.append(tensor.float().contiguous())
        setattr(self.fields, name, self.kept[-1].data_ptr())

    def matrix(self, name: str, tensor_PC: Tensor | None) -> None:
        """Pass a matrix as large and of the same type as the normalised product, or nothing."""
        if tensor_PC is not None:
            address, stride = row(tensor_PC, self.rows, self.channels, self.dtype, name)
            setattr(self.fields, name, address)
            setattr(self.fields, f"{name}_stride", stride)

    def write(self, name: str, tensor: Tensor) -> Tensor:
        """Pass what is to be written, and return it."""
        setattr(self.fields, name, tensor.data_ptr())
        return tensor


def modulated_norm(
    product_PK: Tensor,
    u_Ph: Tensor | None,
    window_h: Tensor | None,
    A_rC: Tensor | None,
    b_r: Tensor | None,
    weight_C: Tensor | None,
    bias_C: Tensor,
    skip_PC: Tensor | None,
    relu: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, [P, C]; the batch's mean and biased variance, [C], fp32. u is in the product's columns where it is None."""
    channels = len(bias_C)
    call = _Call(product_PK, u_Ph, window_h, A_rC, b_r, weight_C, channels, relu, epsilon)
    call.parameter("bias", bias_C, (channels,))
    call.matrix("skip", skip_PC)
    y = call.write("y_out", product_PK.new_empty(call.rows, channels))
    mean, var = call.write("mean", torch.empty(channels)), call.write("var", torch.empty(channels))
    run("modulated_norm", "p", ctypes.addressof(call.fields))
    return y, mean, var


def modulated_norm_backward(
    dy_PC: Tensor,
    y_PC: Tensor | None,
    product_PK: Tensor,
    u_Ph: Tensor | None,
    window_h: Tensor | None,
    A_rC: Tensor | None,
    b_r: Tensor | None,
    weight_C: Tensor | None,
    mean_C: Tensor,
    var_C: Tensor,
    relu: bool,
    epsilon: float,
    has_skip: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the product, window, A, b, weight, bias, skip and u; of no elements where there is no such operand.

    Those of parameters are fp32. u's is in the product's where u is.
    """
    channels = len(mean_C)
    call = _Call(product_PK, u_Ph, window_h, A_rC, b_r, weight_C, channels, relu, epsilon)
    call.parameter("mean", mean_C, (channels,))
    call.parameter("var", var_C, (channels,))
    call.matrix("dy", dy_PC)
    call.matrix("y", y_PC)
    if relu and y_PC is None:
        raise ValueError("the output is needed where a ReLU follows")
    fields = call.fields
    dproduct = call.write("dproduct", torch.empty_like(product_PK, memory_format=torch.contiguous_format))
    fields.dproduct_stride = dproduct.shape[1]
    du, used = dy_PC.new_empty(0) if u_Ph is None else torch.empty_like(u_Ph), channels
    if window_h is not None:
        du_Ph = dproduct[:, channels:] if u_Ph is None else du
        fields.du, (fields.du_row, fields.du_column) = du_Ph.data_ptr(), du_Ph.stride()
        used += len(window_h) if u_Ph is None else 0
    dproduct[:, used:].zero_()
    found = [
        torch.empty(0) if of is None else call.write(name, torch.empty(of.shape))
        for name, of in (("dwindow", window_h), ("dA", A_rC), ("db", b_r), ("dweight", weight_C), ("dbias", mean_C))
    ]
    dskip = call.write("dskip", dy_PC.new_empty(dy_PC.shape)) if has_skip else dy_PC.new_empty(0)
    run("modulated_norm_backward", "p", ctypes.addressof(fields))
    dwindow, dA, db, dweight, dbias = found
    return dproduct, dwindow, dA, db, dweight, dbias, dskip, du
