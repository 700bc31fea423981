"""Provenance columns: device, versions, commit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from comt_cli.commit import git_commit
from comt_cli.kernels.choice import device_here, version_of
from comt_cli.training.devices import device_name


@dataclass(frozen=True)
class Origin:
    """The device with its class (`kernels.processors`), the libraries and the commit of a measurement."""

    device: str
    device_class: str
    torch: str
    triton: str | None
    git_commit: str | None

    def versions(self) -> dict[str, str | None]:
        """The columns that end a row."""
        return {"torch": self.torch, "triton": self.triton, "git_commit": self.git_commit}


def origin_on(device: torch.device) -> Origin:
    """This process's, measuring on `device`."""
    return Origin(
        device_name(device), device_here(device).device_class, torch.__version__, version_of("triton"), git_commit()
    )
