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
    "learning_rate": "lr max_lr peak_lr",
    "weight_decay": "wd decay",
    "batch_size": "bs batch train_batch_size global_batch_size",
    "micro_batch_size": "micro_batch mbs gradient_accumulation_steps grad_accum",
    "steps": "max_steps num_steps iterations iters epochs epoch num_epochs",
    "schedule": "lr_scheduler lr_scheduler_type lr_schedule scheduler",
    "warmup_steps": "warmup warmup_ratio",
    "min_lr_ratio": "min_lr",
    "gradient_clipping": "clip grad_clip max_grad_norm gradient_clip_val",
    "precision": "dtype amp bf16 fp16",
    "evaluate_every": "eval_every eval_steps eval_interval",
    "corpus": "hf dataset text",
    "images": "hf dataset",
    "sequence_length": "seq_len block_size context context_length max_length max_seq_len",
    "vocabulary": "vocab vocab_size",
    "vocabulary_size": "vocab vocab_size",
    "width": "hidden_size d_model dim n_embd",
    "ffn_width": "intermediate_size d_ff ffn_dim",
    "layers": "num_layers n_layers n_layer num_hidden_layers depth",
    "heads": "num_heads n_heads n_head num_attention_heads",
}
"""Keys of settings, with what others call them, or what somebody means to set by it."""
_OPTIONS = {"seed": "seeds", "seeds": "seeds", "device": "device", "gpus": "gpus", "jobs": "jobs"}
"""What is no setting but an option of the command."""


def known_as(name: str, keys: Sequence[str]) -> str | None:
    """The key, dotted or not, that an unknown one surely means: it ends so, or others call it so."""
    word = name.lower().replace("-", "_")
    names = [(key, key.rpartition(".")[2]) for key in keys]
    same = [key for key, end in names if end == word]
    return next(iter([*same, *(key for key, end in names if word in _USUAL.get(end, "").split())]), None)


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
