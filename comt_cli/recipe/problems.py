"""Problems of a recipe, each with its place: file, line, dotted key, nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.errors import UserError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One problem. `line` is 1-based, None for an argument of the command line; `source` the file, where that is a
    setup."""

    key: str
    message: str
    line: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        place = ", ".join(part for part in (self.source, line) if part)
        place = f"{place}: " if place else ""
        return f"{place}{self.key}: {self.message}" if self.key else f"{place}{self.message}"


class RecipeError(UserError):
    """A recipe that cannot be run; holds every problem found, in the order of the file, its setups' last."""

    def __init__(self, source: Path | str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.source or "", problem.line or 0)))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listing = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{source}: {count}, nothing was started\n{listing}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.source, self.problems)


def dotted(path: Iterable[str | int]) -> str:
    """`("rows", "pre-ln", "sites", 0)` as `rows.pre-ln.sites[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that a wrong one was probably meant to be; None if none is near."""
    return next(iter(difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)), None)


_USUAL = {
    "lr": "learning_rate", "max_lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size",
    "min_lr": "min_lr_ratio", "train_batch_size": "batch_size", "gradient_accumulation_steps": "micro_batch_size",
    "max_steps": "steps", "epoch": "steps", "epochs": "steps", "lr_scheduler": "schedule", "lr_schedule": "schedule",
    "warmup": "warmup_steps", "grad_clip": "gradient_clipping", "max_grad_norm": "gradient_clipping",
    "dtype": "precision", "eval_steps": "evaluate_every", "eval_interval": "evaluate_every", "dataset": "corpus images",
    "seq_len": "sequence_length", "block_size": "sequence_length", "max_length": "sequence_length",
    "vocab_size": "vocabulary vocabulary_size", "hidden_size": "width", "d_model": "width", "n_embd": "width",
    "intermediate_size": "ffn_width", "d_ff": "ffn_width", "num_layers": "layers", "n_layer": "layers",
    "num_hidden_layers": "layers", "depth": "layers", "num_heads": "heads", "num_attention_heads": "heads",
}  # fmt: skip
"""Names that others have for keys of settings, or for what somebody means to set by them."""
_OPTIONS = {"seed": "seeds", "seeds": "seeds", "device": "device", "gpus": "gpus", "jobs": "jobs"}
"""What is no setting but an option of the command."""


def known_as(name: str, keys: Sequence[str]) -> str | None:
    """The key, dotted or not, that an unknown one surely means: it ends so, or others call it so."""
    word = name.lower().replace("-", "_")
    meant = [word, *_USUAL.get(word, "").split()]
    return next((key for each in meant for key in keys if key.rpartition(".")[2] == each), None)


def unknown_key(name: str, here: Sequence[str], elsewhere: Sequence[str]) -> str:
    """The message on an unknown key of a section that has the keys `here`; `elsewhere` are those of other sections."""
    meant = known_as(name, [*here, *elsewhere])
    if meant is not None:
        return f"unknown key; did you mean {meant}?"
    is_option = elsewhere and name in _OPTIONS
    return f"unknown key; {f'--{_OPTIONS[name]} says it' if is_option else nearest(name, here)}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that points from a wrong name to the right one: the closest, or all of them."""
    options = list(valid)
    close = closest(name, options)
    return f"did you mean {close}?" if close is not None else f"valid: {', '.join(options) or 'none'}"
