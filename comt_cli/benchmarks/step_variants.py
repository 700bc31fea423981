"""The variants of a language model's training step, built so that all of them fit on a device at once: those of one
network share its weights and its optimiser's states, so that only what a step makes differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.benchmarks.names import STEP_VARIANTS
from comt_cli.benchmarks.shapes import Shape
from comt_cli.benchmarks.step_turns import CompileWhat, Prepared, Unavailable
from comt_cli.benchmarks.workshop import not_fused, prepared, share_weights
from comt_cli.data.images.torchvision_import import make_torchvision_importable
from comt_cli.data.split import IGNORE
from comt_cli.errors import UserError
from comt_cli.installing import install_package
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import Precision
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.devices import compute_context, parameter_dtype, product_dtype
from comt_cli.training.objective import SummedLoss, prepare_compiler
from comt_cli.training.optimisation import adam

BEST_PLAIN = ["plain-compiled", "plain-fused"]
"""The quicker of these is what gated steps are measured against."""
PEER = "transformers"
OPTIONAL = ("transformers", "transformers-compiled", "plain", "comt-eager", "transponder-eager")
"""Left out where they do not fit in a device's memory; for the others the batch is made smaller."""
_METHODS = {"plain": "pre-ln", "comt": "comt", "transponder": "transponder"}

LossSum = Callable[[Tensor, Tensor], Tensor]


class Workshop:
    """Builds the variants of one shape in one precision on one device."""

    def __init__(self, shape: Shape, precision: Precision, device: torch.device, compile_what: CompileWhat) -> None:
        self.shape, self.precision, self.device, self.compile_what = shape, precision, device, compile_what
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length), generator=generator)
        targets = torch.roll(tokens, -1, 1)
        targets[:, -1] = IGNORE
        self.tokens, self.targets = tokens.to(device), targets.to(device)
        self._networks: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def prepare(self, variant: str) -> Prepared:
        """A variant with its step and its forward pass.

        Raises:
            Unavailable: this machine has none of its parts, or not the library.
        """
        base, _, how = variant.partition("-")
        make = self._transformers if base == "transformers" else self._ours
        model, loss_sum, notes = make(base, how)
        count = int((self.targets != IGNORE).sum())

        def loss() -> Tensor:
            with compute_context(self.precision, self.device):
                return loss_sum(self.tokens, self.targets) / count

        return prepared(loss, model, self._networks[base][1], notes)

    def _ours(self, base: str, how: str) -> tuple[nn.Module, LossSum, list[str]]:
        model = empty_network(self.shape.model(), wiring_of({"name": _METHODS[base]}), **self.shape.dimensions())
        if base in self._networks:
            share_weights(model, self._networks[base][0])
        else:
            materialise(model, self.device, seed=0)
            model.to(parameter_dtype(self.precision))
            self._keep(base, model)
        notes = []
        if how == "fused":
            choices = use_kernels(model, "fused", self.device, product_dtype(self.precision), compiled=True)
            notes = not_fused(choices)
        module = SummedLoss(model)
        if how in ("compiled", "fused"):
            self._compile(module, model)
        return model, module, notes

    def _compile(self, module: SummedLoss, model: Llama) -> None:
        if self.compile_what == "whole":
            module.compile_model(keep_others=True)
        else:
            for block in model.blocks:
                block.compile(dynamic=False, fullgraph=True)
        _make_room()

    def _transformers(self, base: str, how: str) -> tuple[nn.Module, LossSum, list[str]]:
        try:
            library, shape = import_transformers(), self.shape
        except UserError as error:
            raise Unavailable(error.message) from None
        if base not in self._networks:
            config = library.LlamaConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.width,
                intermediate_size=shape.ffn_width,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                max_position_embeddings=shape.length,
                use_cache=False,
            )
            model = library.LlamaForCausalLM(config).to(device=self.device, dtype=parameter_dtype(self.precision))
            self._keep(base, model)
        model = self._networks[base][0]
        called: Any = model
        if how == "compiled":
            called = torch.compile(model, dynamic=False)
            _make_room()

        def loss_sum(tokens: Tensor, targets: Tensor) -> Tensor:
            # `shift_labels` are targets that stand where they are predicted, as ours do.
            loss: Tensor = called(input_ids=tokens, labels=tokens, shift_labels=targets).loss
            return loss * (
                shape.batch * (shape.length - 1)
            )  # its loss is the mean over the targets; one a row has none

        return model, loss_sum, []

    def _keep(self, base: str, model: nn.Module) -> None:
        self._networks[base] = model, adam(model, TrainSettings(steps=1, learning_rate=1e-4))


def _make_room() -> None:
    # Every variant needs two versions of the code that all share, one with gradients and one without.
    prepare_compiler(versions=4 * len(STEP_VARIANTS), keep_others=True)


def import_transformers() -> Any:
    """The `transformers` library, which is no dependency of this program: only benchmarks and tests compare with it.

    Raises:
        UserError: it is not installed.
    """
    make_torchvision_importable()  # transformers imports it where it finds one
    try:
        import transformers
    except ImportError:
        raise UserError(
            "the comparison with transformers needs that library", install_package("transformers")
        ) from None
    return transformers
