"""One forward pass with observers on some of a network's modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded

Observer = Callable[[Any, Any], None]
"""Called with a module's first input and its output."""


@contextlib.contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, Callable[..., None]]]) -> Iterator[None]:
    """In this context each module calls its forward hook, which changes nothing: `hook(module, inputs, output)`."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watch(loaded: Loaded, inputs: Iterable[Tensor], observers: Iterable[tuple[nn.Module, Observer]] = ()) -> None:
    """Run the model once on its inputs, a batch of one, in fp32 and without gradients, and call each observer as its
    module runs.

    The weights of the given model become fp32: values in a figure should not show the rounding of a storage type.

    Raises:
        UserError: the network's outputs are not finite.
    """
    model = loaded.model.float().eval()

    def show(observer: Observer, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        observer(inputs[0], output)

    with hooked((module, partial(show, observer)) for module, observer in observers), torch.no_grad():
        logits_BTV = model(*inputs)
    if not logits_BTV.isfinite().all():
        raise UserError(f"the outputs of {loaded.name} are not finite numbers", "Did its training diverge?")
