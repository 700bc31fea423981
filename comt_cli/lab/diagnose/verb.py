"""`comt diagnose`: what residual connections do before any training, and which printed claims about that hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import options
from comt_cli.errors import UserError
from comt_cli.verbs.loading import loading

if TYPE_CHECKING:
    from comt_cli.lab.diagnose.networks import Setup
    from comt_cli.methods.base import Wiring

_DEPTH = 30
"""Of the networks that are looked into layer by layer: the chapter's."""
_MOST_DEPTH, _MOST_IN_RANGE = 1000, 10
_BYTES = 20 * 4
"""Of a block's weights, over its width squared: 20 numbers in the largest (llama with sas), 12 in most; all fp32."""
_MOST_BYTES = 5 * 10**9
"""Of the weights of one network: what any machine has. Activations are small beside them."""
_COMPARED = "pre-norm,post-norm,rezero,highway,deepnorm,sas"
_TRAINED = "ours/modern"
"""The recipe whose rows are looked at beside the methods as they come."""
_ALSO = {"name": "resformer", "learned": True}
"""What no recipe trains, and learns something where the method as it comes has nothing that could."""
_BRANCHES = ("linear-relu", "gelu-mlp", "llama")


_HELP = {
    "connections": "Residual connections to compare, or methods that have one, or all connections.",
    "depths": "Depths, in blocks; of a range at most ten, evenly apart.",
    "branch": "What the blocks compute: linear-relu and gelu-mlp with LayerNorm, as in the chapter, or llama, our "
    "language models' block with RMSNorm.",
    "width": "Width of the networks, a multiple of 16, at most 1104 at the usual depths; each branch has its own if "
    "not given.",
    "seeds": "Seeds; the tables show mean and spread.",
    "methods": "Methods, or rows of the recipe ours/modern, whose language models' start is compared with Pre-LN's, "
    "and followed for 20 updates; all, or none.",
}


def diagnose(
    connections: Annotated[str, typer.Option(metavar="A,B", help=_HELP["connections"])] = _COMPARED,
    depths: Annotated[str, typer.Option(metavar="5-50 or 5,20", help=_HELP["depths"])] = "5-50",
    branch: Annotated[str, typer.Option(metavar="A,B", help=_HELP["branch"])] = ",".join(_BRANCHES),
    width: Annotated[int | None, typer.Option(help=_HELP["width"])] = None,
    seeds: Annotated[str, typer.Option(metavar="1,2 or 1-3", help=_HELP["seeds"])] = "1-3",
    methods: Annotated[str, typer.Option(metavar="A,B", help=_HELP["methods"])] = "all",
    out: options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Look at residual connections before any training. Needs no data: do signals and gradients get through?

    Measures the gradient at the input against depth, the stream's norm along the layers, networks with skip paths
    against such without, and which connections start as the identity; how language models of every method, and of every
    row of ours/modern, start, beside what their papers say, and what of them is asleep after 20 updates. Checks the
    printed claims of the chapter on residual connections (Brenndoerfer 2025) in its own set-up, whatever the options
    say. Takes about two minutes.

    Examples:

      comt diagnose

      comt diagnose --connections all --branch llama

      comt diagnose --connections pre-norm,post-norm,comt --branch llama --depths 2,4,8,16 --seeds 1-5 --results look
    """
    from comt_cli.recipe.load import select
    from comt_cli.runs.plan import parse_seeds

    chosen_depths, chosen_seeds, branches = (
        _depths(depths),
        parse_seeds(seeds) or [],
        select(branch, _BRANCHES, "branch"),
    )
    if width is not None:
        _check_width(width, max(*chosen_depths, _DEPTH))
    names, started = _connections(connections), _methods(methods)
    loading("the networks")
    import torch

    from comt_cli.lab.bench.runner import versions
    from comt_cli.lab.diagnose.claims import claims_frame
    from comt_cli.lab.diagnose.networks import RELU_MLP, SETUPS, measured
    from comt_cli.lab.diagnose.page import Diagnosis, print_diagnosis, write_diagnosis
    from comt_cli.lab.diagnose.start import starts
    from comt_cli.training.devices import device_name

    known = versions()  # before anything is written: it says whether the checkout is clean
    where = {"device": device_name(torch.device("cpu")), "torch": known["torch"], "git_commit": known["git_commit"]}
    setups = [SETUPS[name] for name in branches]
    tables = measured(_wirings(names, setups), setups, chosen_depths, _DEPTH, chosen_seeds, width)
    tables |= {"claims": claims_frame(), "start": starts(started, chosen_seeds[0])}
    says = {setup.name: f"{setup.says}, width {width or setup.width}" for setup in (*setups, RELU_MLP)}
    found = Diagnosis(tables, chosen_seeds, _DEPTH, says, where)
    folder = out or results / "diagnose"
    write_diagnosis(found, folder)
    print_diagnosis(found)
    typer.echo(f"Written to {folder}: diagnose.md with the reasons for every verdict, figures, and their CSV files.")


def _connections(text: str) -> list[str] | None:
    """The names of connections, or of methods, that are given; None for all. Raises `UserError` where there is none, or
    no such."""
    from comt_cli.methods import methods
    from comt_cli.methods.base import residual_connections
    from comt_cli.recipe.load import select
    from comt_cli.tasks import tasks

    if text.strip() == "all":
        return None
    of_tokens = [command for command, task in tasks().items() if task.sites.stream == "tokens"]
    known = [*residual_connections(), *(name for command in of_tokens for name in methods(command))]
    select(text, dict.fromkeys(known), "residual connection or method")
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _methods(text: str) -> list[dict[str, Any]]:
    """The methods for language models that are given, each with its options; all are those that need no options, the
    rows of `_TRAINED`, and `_ALSO`. A name means the method, and the row, that are called so. Raises `UserError` where
    there is no such."""
    from comt_cli.methods import catalogue, in_words, methods
    from comt_cli.recipe.find import find_recipe
    from comt_cli.recipe.load import load_recipe, select

    if text.strip() == "none":
        return []
    own = methods("train-lm").items()
    named: list[tuple[str, dict[str, Any]]] = [
        (name, {"name": name})
        for name, method in own
        if not any(field.is_required() for field in method.model_fields.values())
    ]
    named += [*load_recipe(find_recipe(_TRAINED), catalogue()).methods.items(), (in_words(_ALSO), _ALSO)]
    wanted = select(None if text.strip() == "all" else text, dict(named), "method")
    # A row whose options are all defaults is the method itself: each is there once, beside others of its name.
    chosen = {in_words(method): method for name, method in named if name in wanted}
    return [chosen[words] for words in sorted(chosen)]


def _wirings(names: list[str] | None, setups: list[Setup]) -> dict[str, Wiring]:
    """The wirings of these names, or all connections that can be measured. Raises `UserError` where one that is named
    cannot, or a set-up has no place for it."""
    from comt_cli.lab.diagnose.networks import wirings
    from comt_cli.methods.base import residual_connections

    known = wirings()
    chosen = [name for name in known if name in residual_connections()] if names is None else names
    for name in chosen:
        if name not in known:
            hint = "Only connections with one stream of tokens are measured; this hands on more, or is for images."
            raise UserError(f"{name} cannot be diagnosed", hint)
        for setup in setups:
            if not setup.fits(known[name]):
                said = f"{name} has gates or norms of its own: the branch {setup.name} has no place for its own"
                raise UserError(said, "give --branch llama")
    return {name: known[name] for name in chosen}


def _check_width(width: int, depth: int) -> None:
    """Whether networks of `depth` blocks that wide fit into the memory of any machine, whatever they consist of."""
    if width < 16 or width % 16:
        raise UserError(f"--width {width}: not a multiple of 16", "for instance 64 or 128")
    most = int((_MOST_BYTES / _BYTES / depth) ** 0.5) // 16 * 16
    if width > most:
        raise UserError(
            f"--width {width}: {depth} blocks that wide take more than {_MOST_BYTES // 10**9} GB of memory",
            f"At most {most} with {depth} blocks (at least {_DEPTH} are measured, whatever --depths says).",
        )


def _depths(text: str) -> list[int]:
    """`5-50` as 5, 10, ... 50, `5,20` as it stands; in order. Raises `UserError`."""
    try:
        found = [int(part) for part in text.replace("-", ",").split(",")]
        if "-" in text:
            low, high = found
            steps = max(1, min(_MOST_IN_RANGE - 1, high - low))
            found = [round(low + (high - low) * step / steps) for step in range(steps + 1)]
    except (ValueError, OverflowError):
        found = [0]
    if not 1 <= min(found) <= max(found) <= _MOST_DEPTH or ("-" in text and found[0] > found[-1]):
        hint = "for instance 5-50 or 10,20,40"
        raise UserError(f"--depths {text}: depths are whole numbers from 1 to {_MOST_DEPTH}, the least first", hint)
    return sorted(set(found))
