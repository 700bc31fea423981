"""Roles of parameters, from which their optimiser follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torch import nn

Role = Literal["matrix", "gate", "scalar", "embedding", "head"]
"""`gate`: parameters of gates, and of maps from activations to mixing weights; `scalar`: biases, norms and learned
numbers; `matrix`: every other map between activations."""

ROLES: tuple[Role, ...] = get_args(Role)


def roles_of(model: nn.Module) -> dict[nn.Parameter, Role]:
    """Role of every parameter: the attribute `role` of its module, else of the nearest module around it that has one.
    Without one, a tensor with two or more dimensions is a matrix, and any other a scalar. A parameter of several
    modules has the role that it has in the first."""
    found: dict[nn.Parameter, Role] = {}

    def visit(module: nn.Module, around: Role | None) -> None:
        role: Role | None = getattr(module, "role", None) or around
        for parameter in module.parameters(recurse=False):
            found.setdefault(parameter, role or ("matrix" if parameter.ndim > 1 else "scalar"))
        for child in module.children():
            visit(child, role)

    visit(model, None)
    return found


def joined_rows(model: nn.Module) -> dict[nn.Parameter, Sequence[int]]:
    """Rows of each matrix in a parameter that holds several, one below the other: the attribute `joined_rows` of its
    module."""
    return {
        module.get_parameter(name): rows
        for module in model.modules()
        for name, rows in getattr(module, "joined_rows", {}).items()
    }


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Trained parameters of projections and of gates that consist of matrices with several rows and columns, which Muon
    updates."""
    joined = joined_rows(model)
    return {
        parameter
        for parameter, role in roles_of(model).items()
        if role in ("matrix", "gate") and parameter.requires_grad and parameter.ndim == 2
        if min(parameter.shape[1], *joined.get(parameter, [len(parameter)])) > 1
    }
