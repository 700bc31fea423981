"""Runs as records of names, settings and numbers, filtered by conditions; trained models by selectors of runs."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.methods import method_from
from comt_cli.recipe.problems import closest, every_key, known_as
from comt_cli.report.frame import Record
from comt_cli.runs.known import KnownRun, Place
from comt_cli.tasks import tasks
from comt_cli.verbs.select import listed_runs, model_source

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from comt_cli.data.tokenizer import Tokenizer
    from comt_cli.exchange.codecs import TextCodec

_NAMES = ("recipe", "row", "column", "seed", "scale", "command", "id", "name", "state", "folder")
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt},
    **{ast.GtE: operator.ge, ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many},
}
_EXAMPLE = 'For example: train.steps > 500 and row in ["pre-ln", "post-ln"]. Put text in quotes.'


def find_runs(
    *selectors: str, where: str | None = None, scale: str | None = None, runs: str | Path = "runs"
) -> pd.DataFrame:
    """Runs below the folder `runs` as a data frame, one row per run and place in a table.

    Rows are in the order of tables, rows, columns and seeds. The columns are `recipe`, `row`, `column`, `seed`,
    `scale`, `command`, `id`, `name` (see `comt runs --name`), `state` and `folder`; settings by dotted key
    (`train.steps`, `method.hidden`); and results such as `perplexity`, in the units of `result.json`. Values that a run
    lacks are missing.

    Args:
        *selectors: Recipes, `recipe:row:column:seed`, ids or names of runs; by default all runs.
        where: Expression over the columns: comparisons, `in`, `and`, `or`, `not`, numbers and quoted text. A missing
            value is unequal to everything, and neither smaller nor larger.
        scale: Only runs of this scale.
        runs: Folder of the run directories.

    Returns:
        One row per run and place in a table.

    Raises:
        UserError: Nothing matches a selector, the expression is wrong, or it names a column that no run has.

    Examples:
        >>> from comt_cli import find_runs
        >>> found = find_runs("mine.yaml", where="train.steps > 2 and row == 'comt'")
        >>> found[["row", "seed", "state", "train.steps"]]
            row  seed state  train.steps
        0  comt     1  done            3
    """
    of = OfRuns(scale, runs=Path(runs))
    return frame_of_records(having(listed_runs(selectors, of), where).values())


def having(found: Iterable[tuple[KnownRun, Place]], where: str | None) -> dict[tuple[KnownRun, Place], Record]:
    """The records of the runs for which an expression holds. Raises `UserError` as `find_runs` does."""
    records = {each: record_of(*each) for each in found}
    if where is None:
        return records
    known = [key for record in records.values() for key in record]
    known += [key for task in tasks().values() for key in (*every_key(task.settings), *task.metrics)]
    holds = _condition(where, [*dict.fromkeys([*_NAMES, *known])])
    return {each: record for each, record in records.items() if holds(record)}


def record_of(run: KnownRun, place: Place) -> Record:
    """A row of `find_runs`."""
    spec, names = run.spec, [place.recipe, place.row, place.column, run.seed, run.label("scale"), run.label("command")]
    names += [run.id, run.given_name, run.standing.value, str(run.directory.path)]
    record: Record = dict(zip(_NAMES, names, strict=True))
    if spec is not None:
        sections: dict[str, Any] = spec.settings.model_dump(mode="json") | {"method": spec.method}
        with contextlib.suppress(KeyError, ValueError):  # the method may have been removed
            sections["method"] = {"name": spec.method["name"], **method_from(spec.method).model_dump(mode="json")}
        record |= {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    return {key: value for key, value in run.result.items() if isinstance(value, int | float)} | record


def frame_of_records(records: Iterable[Record]) -> pd.DataFrame:
    """Records as a data frame, with the columns in the order of `find_runs`."""
    import pandas as pd

    every = list(records)
    keys = dict.fromkeys([*_NAMES, *(key for record in every for key in record)])
    return pd.DataFrame(every, columns=sorted(keys, key=lambda key: (key not in _NAMES, "." not in key)))


def _condition(text: str, known: Sequence[str]) -> Callable[[Record], Any]:
    """A function of a record that evaluates the expression `text`. Raises `UserError`."""

    def wrong(why: str) -> UserError:
        return UserError(f"where {text[:200]!r}: {why[:200]}", _EXAMPLE)

    def value(node: ast.expr, of: Record) -> Any:  # noqa: PLR0911 - one for each kind of node
        match node:
            case ast.Constant(value=str() | int() | float() | None as constant):
                return constant
            case ast.Name() | ast.Attribute():
                key = ast.unparse(node)
                if key not in known:
                    meant = known_as(key, known) or closest(key, known)
                    raise wrong(f"no run has {key}" + (f"; did you mean {meant}?" if meant is not None else ""))
                return of.get(key)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [value(part, of) for part in parts]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not value(part, of)
            case ast.BoolOp(op=kind, values=parts):  # no short cut: an error in any part must be reported
                return (all if isinstance(kind, ast.And) else any)([value(part, of) for part in parts])
            case ast.Compare(left=left, ops=kinds, comparators=others) if {*map(type, kinds)} <= {*_COMPARED}:
                sides = [value(side, of) for side in (left, *others)]
                return all(compare(*each) for each in zip(kinds, sides, sides[1:], strict=False))
        raise wrong(f"{ast.unparse(node)} is not allowed here")

    def compare(kind: ast.cmpop, one: Any, two: Any) -> bool:
        if None in (one, two) and not isinstance(kind, ast.Eq | ast.NotEq):
            return isinstance(kind, ast.NotIn)
        try:
            return bool(_COMPARED[type(kind)](one, two))
        except TypeError as error:
            raise wrong(str(error)) from None

    try:
        expression = ast.parse(text.strip(), mode="eval").body
        value(expression, {})  # check it even if there are no runs
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise wrong(f"not an expression: {getattr(error, 'msg', None) or error}") from None
    return partial(value, expression)


def load(source: str | Path, *, scale: str | None = None, runs: str | Path = "runs") -> tuple[nn.Module, Any]:
    """A trained model, on the CPU, in evaluation mode and in the types that it was stored in, and its tokenizer.

    The model maps token ids `[B, T]` to logits `[B, T, V]`, or images `[B, 3, H, W]` to `[B, C]`; for other tasks see
    `comt_cli.models`. The tokenizer has `encode(text) -> ids` and `decode(ids) -> text` (`exchange.codecs.TextCodec`;
    for translators and captioners `data.tokenizer.Tokenizer`), and is None if there is none.

    Args:
        source: A run as `recipe:row:column:seed`, by id or by name; its folder or `checkpoint.pt`; a Hugging Face
            folder, hub name or GGUF file with LLaMA's architecture; or a folder with a saved wrapped model or an
            exported run. No code of a folder is run.
        scale: Scale of the run.
        runs: Folder of the run directories.

    Returns:
        The model and the tokenizer.

    Raises:
        UserError: There is no such model, or several runs match.

    Examples:
        >>> from comt_cli import load
        >>> model, tokenizer = load("mine.yaml:comt")
        >>> tokenizer.decode(tokenizer.encode("a gate"))
        'a gate'
    """
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.library.restored import load as load_any

    found = load_any(model_source(str(source), OfRuns(scale, runs=Path(runs))), Loaded)
    tokenizer: TextCodec | Tokenizer | None = getattr(found, "codec", None) or getattr(found, "tokenizer", None)
    return found.model.eval(), tokenizer
