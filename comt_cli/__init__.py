"""Train, measure and inspect networks with learnable or input-dependent residual connections.

Each public name is imported at its first use, so `import comt_cli` imports neither torch nor pandas. All of them raise
`comt_cli.errors.UserError`, whose message states what is wrong and what would be right. Examples: docs/library.md.
"""

from __future__ import annotations

from comt_cli import torchvision_hook as torchvision_hook  # active after this import

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from comt_cli.library.values import gate_values, residual_stream
    from comt_cli.library.wrap import unwrap, wrap
    from comt_cli.methods import list_methods, method
    from comt_cli.verbs.find import find_runs, load
    from comt_cli.verbs.train import train

__version__ = "0.1.0"
__all__ = ["find_runs", "gate_values", "list_methods", "load", "method"]
__all__ += ["__version__", "residual_stream", "train", "unwrap", "wrap"]
_HOMES = {
    "library.values": ("gate_values", "residual_stream"),
    "library.wrap": ("unwrap", "wrap"),
    "methods": ("list_methods", "method"),
    "verbs.find": ("find_runs", "load"),
    "verbs.train": ("train",),
}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
