"""The gallery of methods: a card for each, made of its file, its wiring, and the committed results."""

from __future__ import annotations

import csv
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comt_cli import wrap
from comt_cli.errors import UserError
from comt_cli.methods import catalogue, in_words, method_from, methods
from comt_cli.methods.base import Method, Wiring
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.tasks import tasks
from docs.site import drawing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SWEEP = RESULTS / "evening/ours/modern-sweep.csv"
COSTS = RESULTS / "evening/ours/modern-costs.csv"
START = RESULTS / "diagnose/start.csv"
FAMILIES = {
    "Gates": "Factors on what projections, convolutions or branches give, computed from the input.",
    "Norms and their places": "What is normalised, where, and with which fixed weights a block adds.",
    "Learned additions": "Skip path and branch get weights that are learned, or computed from the input.",
    "Several residual streams": "Blocks read from, and write to, more than one stream.",
    "Reading earlier layers": "Blocks read a mixture of what earlier ones gave.",
    "Controls": "Plain networks that cost as much as another method.",
}
"""Every family, in the order of the page."""
NETWORKS = {"train-lm": "language models", "train-resnet": "ResNets", "train-mt": "translators",
            "train-caption": "captioners", "train-bert": "BERTs"}  # fmt: skip
HEAD = """\
# Methods

Every method that `comt` has, each in one file. A card says what it computes and where it acts, what deviates from its
paper, how it starts, what it costs, and what came out. Results are of small networks and short training; those of
[ours/modern](../results/evening/ours/modern-sweep.md) have a learning rate tuned for each row, others one rate for the
whole table. Lower perplexity is better, and so are negative differences of it; accuracy and
BLEU are the other way round. Any gate works with any residual connection.
[How to add a method](../CONTRIBUTING.md#add-a-method).
"""


@dataclass(frozen=True)
class Result:
    """A line of a committed table: the row of a method, with the options that are not its defaults."""

    table: Path
    line: Mapping[str, str]
    options: str

    @property
    def unit(self) -> str:
        return "percent" if "difference_percent" in self.line else "points"

    @property
    def difference(self) -> float | None:
        found = self.line.get(f"difference_{self.unit}")
        return float(found) if found else None

    @property
    def gain(self) -> float:
        """How much better than the baseline, for sorting."""
        found = self.difference or 0.0
        return -found if self.unit == "percent" else found


def pages() -> dict[str, Callable[[], str]]:
    """The page of the gallery by its place in the site."""
    return {"methods/index.md": page}


def page() -> str:
    """The whole gallery."""
    by_family: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in methods():
        by_family[family_of(name)].append(name)
    found = {name: result_of(name) for name in methods()}
    text = [HEAD, "\n| method | networks | difference to its baseline |\n| --- | --- | --- |\n"]
    ordered = {
        family: sorted(names, key=lambda name: (-found[name].gain if found[name] else 1e9, name))  # type: ignore[union-attr]
        for family, names in by_family.items()
    }
    for names in ordered.values():
        text += [f"| [{name}](#{anchor(name)}) | {networks_of(name)} | {in_short(found[name])} |\n" for name in names]
    for family, names in ordered.items():
        text += [f"\n## {family}\n\n{FAMILIES[family]}\n", *(card(name, found[name]) for name in names)]
    return "".join(text)


def card(name: str, result: Result | None) -> str:
    """One method's card."""
    kind = methods()[name]
    file = Path(inspect.getfile(kind)).relative_to(ROOT).as_posix()
    title, equation, about, deviations = parts_of(inspect.getmodule(kind))
    rows = [
        ("networks", networks_of(name)),
        ("options", (inspect.getdoc(kind) or "").replace("\n", " ") if options_of(kind) else "none"),
        ("deviations", deviations),
        ("at the start", start_of(name)),
        ("cost", cost_of(name)),
        ("result", in_words_of(result)),
        ("in a recipe", f"`method: {line_of(kind)}`"),
        ("in your model", wrapping_of(name)),
        ("code", f"[{file}](files/{file})"),
    ]
    lines = [f'\n### {name} {{ #{anchor(name)} }}\n\n{title}\n', equation, f"\n{about}\n" if about else "",
             f"\n{drawing.block(wiring_of(name), kind)}\n", "\n| | |\n| --- | --- |\n"]  # fmt: skip
    lines += [f"| {what} | {cell(said)} |\n" for what, said in rows]
    return "".join(lines)


def anchor(name: str) -> str:
    """Where a method's card is on the page."""
    return name.replace("+", "-and-")


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


def parts_of(module: Any) -> tuple[str, str, str, str]:
    """Title, equation, what else is said, and deviations, of the text at the top of a method's file."""
    title, _, rest = (module.__doc__ or "").partition("\n")
    equation = "".join(f"\n{match}\n" for match in re.findall(r"\$\$.+?\$\$", rest, re.DOTALL))
    rest = re.sub(r"\$\$.+?\$\$\n*", "", rest, flags=re.DOTALL)
    about, _, deviations = rest.partition("Deviations:")
    return title, equation, about.strip(), deviations.strip() or "none"


def options_of(kind: type[Method]) -> Mapping[str, Any]:
    """The options of a method."""
    return kind.model_fields


def line_of(kind: type[Method]) -> str:
    """A method as a recipe names it: with an option where there is one that has to be given."""
    required = [key for key, field in kind.model_fields.items() if field.is_required()]
    return f"{{name: {kind.name}, {', '.join(f'{key}: ...' for key in required)}}}" if required else kind.name


def networks_of(name: str) -> str:
    """The networks that can have a method."""
    return ", ".join(words for command, words in NETWORKS.items() if methods()[name].fits(tasks()[command].sites))


@functools.cache
def wiring_of(name: str) -> Wiring:
    """The wiring with the paper's options; of a method that needs another one to be like, with CoMT."""
    kind = methods()[name]
    required = [key for key, field in kind.model_fields.items() if field.is_required()]
    return method_from({"name": name, **{key: {"name": "comt"} for key in required}}).wiring()


def residual_of(wiring: Wiring) -> Any:
    """The class of a wiring's residual connection."""
    return wiring.residual.func if isinstance(wiring.residual, functools.partial) else wiring.residual


def family_of(name: str) -> str:
    """The family of a method, by what its wiring changes."""
    wiring = wiring_of(name)
    module = residual_of(wiring).__module__.rpartition(".")[2]
    if wiring.widening:
        return "Controls"
    if wiring.gates:
        return "Gates"
    if module == "hyper_connections" or name == "siamese-norm":
        return "Several residual streams"
    if wiring.shared_values or module in ("attention_residuals", "dense"):
        return "Reading earlier layers"
    return "Norms and their places" if module == "norm_placement" else "Learned additions"


@functools.cache
def recipe_of(name: str) -> LoadedRecipe:
    """A shipped recipe, by the name that tables give."""
    return load_recipe(find_recipe(name), catalogue())


@functools.cache
def lines_of(path: Path) -> tuple[dict[str, str], ...]:
    """The lines of a committed CSV."""
    with path.open(encoding="utf-8", newline="") as handle:
        return tuple(csv.DictReader(handle))


@functools.cache
def results() -> tuple[Result, ...]:
    """Every line of the committed tables with a difference: tuned ones first, then by scale and name."""
    tables = [path for scale in ("evening", "smoke") for path in sorted((RESULTS / scale).glob("*/*.csv"))]
    found = []
    for path in [SWEEP, *tables]:
        lines = lines_of(path)
        if not lines or not {"recipe", "verdict", "row", "baseline"} <= {*lines[0]} or lines[0].get("changed_settings"):
            continue
        try:
            known = recipe_of(lines[0]["recipe"]).methods
        except UserError:  # a recipe that is no longer shipped
            continue
        for line in lines:
            if line["row"] in known and (line.get("difference_percent") or line.get("difference_points")):
                found.append(Result(path, line, in_words(known[line["row"]])))
    return tuple(found)


def result_of(name: str) -> Result | None:
    """The result that a card shows: with the method's default options if there is one, else with others."""
    if name == lines_of(SWEEP)[0]["baseline"]:
        return None
    exact = (found for found in results() if found.options == name)
    other = (found for found in results() if found.options.split(" (")[0] == name)
    return next(exact, next(other, None))


def in_short(result: Result | None) -> str:
    """A difference with its interval."""
    if result is None or result.difference is None:
        return "not measured"
    sign = " %" if result.unit == "percent" else " points"
    line = result.line
    ends = [f"{float(line[end]):+.3g}" for end in ("interval_low", "interval_high") if line[end]]
    return f"{result.difference:+.3g}{sign}" + (f" \\[{', '.join(ends)}\\]" if ends else "")


def in_words_of(result: Result | None) -> str:
    """A result with its table, seeds and verdict."""
    if result is None:
        return "not measured"
    line = result.line
    table = result.table.with_suffix(".md").relative_to(ROOT).as_posix()
    options = "" if result.options == result.options.split(" (")[0] else f" of {result.options}"
    return (
        f"{in_short(result)} in {line['metric'].replace('_', ' ')}{options}, beside {line['baseline']}, "
        f"{line['n']} seeds: {line['verdict']} ([{table.removeprefix('results/').removesuffix('.md')}](../{table}))"
    )


def cost_of(name: str) -> str:
    """What a method adds in parameters, FLOPs and time of a training step, in ours/modern's network."""
    rows = [row for row, given in recipe_of("ours/modern").methods.items() if in_words(given) == name]
    lines = [line for line in lines_of(COSTS) if line["row"] in rows]
    if not lines:
        return "not measured"
    line, plain = lines[0], lines_of(COSTS)[0]
    more = 100 * (int(line["parameters"]) / int(plain["parameters"]) - 1)
    return (
        f"{more:+.2g} % parameters, {float(line['flops_ratio']):.3g} times the FLOPs, "
        f"{float(line['compiled_step_ratio']):.3g} times the time of a compiled training step "
        f"({line['device']}, {line['precision']})"
    )


def start_of(name: str) -> str:
    """How far from Pre-LN a language model starts, and what 20 updates leave where it was."""
    line = next((line for line in lines_of(START) if line["method"] == name), None)
    if line is None:
        return "not measured"
    difference = float(line["difference"])
    said = "as Pre-LN, to rounding" if difference < 1e-6 else f"{difference:.2g} from Pre-LN (of its logits' norm)"
    if line["published"]:
        said += f"; published: {line['published']}"
    if line["own"] not in ("", "0"):
        asleep = f"Inactive after 20 updates: {line['asleep']}"
        said += f". {asleep if line['asleep'] else 'All that it learns moves in 20 updates'}"
    return said


def wrapping_of(name: str) -> str:
    """The line that puts a method into a model of another library, found by doing so; or why there is none."""
    if not methods()[name].fits(tasks()["train-lm"].sites):
        return "no `wrap`: it is for ResNets"
    if "like" in methods()[name].model_fields:
        return "no `wrap`: it changes widths"
    lines = [f'wrap(model, "{name}"{more})' for more in ("", ", scale=2", ', start="paper"')]
    for given, line in zip(({}, {"scale": 2}, {"start": "paper"}), lines, strict=True):
        if "scale" in given and "scale" not in methods()[name].model_fields:
            continue
        try:
            wrap(tiny_llama(), name, **given)
        except UserError as error:
            said = error.message
        else:
            return f"`{line}`" + (": not the identity at the start" if "start" in given else "")
    return f"no `wrap`: {said.rpartition(': ')[2]}"


def tiny_llama() -> Any:
    """A network of another library, as small as can be."""
    import transformers

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=9, **sizes))
