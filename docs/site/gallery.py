"""Generate the method gallery: a card per method, from its file, its wiring and the committed results."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comt_cli import wrap
from comt_cli.errors import UserError
from comt_cli.methods import catalogue, in_words, method_from, methods
from comt_cli.methods.base import Method, Wiring
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import load_recipe
from comt_cli.report.overview import ours
from comt_cli.report.statistics import Paired
from comt_cli.report.written import Line, Reader, Written, WrittenCell, read_lines, written_below
from comt_cli.tasks import tasks
from docs.site import drawing, recipe_keys

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SWEEP = "evening/ours/modern-sweep"
COSTS = RESULTS / "evening/ours/modern-costs.csv"
DIAGNOSED = RESULTS / "diagnose"
FAMILIES = {
    "Gates": "Factors on the outputs of projections, convolutions or branches, computed from the input.",
    "Norms and initialisation": "The place and form of norms, and initial values.",
    "Weighted additions": "Fixed, learned or input-dependent weights on the skip path and the branch.",
    "Several residual streams": "Blocks read from, and write to, more than one stream.",
    "Reading earlier layers": "Blocks read mixtures of earlier layers' outputs.",
    "Token embeddings": "Rows of further tables of the token ids, or the previous token's embedding, are added.",
    "Attention": "The output of attention, without gates.",
    "Controls": "Plain networks with the cost of another method.",
}
"""Every family, in the order of the page."""
GROUPS = {
    "Language models, tuned rates": "Scale evening, with a learning rate tuned for each method. Lower is better.",
    "Language models, one rate": "Scale evening, with one learning rate for all methods. Lower is better.",
    "Language models, smoke": "Scale smoke: minutes of training, hence wide intervals. Lower is better.",
    "Other networks": "BLEU, accuracy and correlations in points. Higher is better.",
}
"""Groups of comparable results, in the order of the page."""
NETWORKS = {"train-lm": "language models", "train-resnet": "ResNets", "train-mt": "translators",
            "train-caption": "captioners", "train-bert": "BERTs"}  # fmt: skip
INACTIVE = {"streams": "the differences between the streams", "mix": "the mixing of the streams"}
HEAD = """\
# Methods

Each of the {count} methods is one file. Its card shows the equation, the changed parts of a block, the deviations from
the paper, the cost, and one measured result. The results are of small networks and short training. Brackets are 95 %
intervals; [How to read the tables](../statistics.md) explains them. Gates and residual connections can be combined.
[How to add a method](../../CONTRIBUTING.md#add-a-method).

Drawings show the branches of a block of a LLaMA (attention, feed-forward network) or of a ResNet, and "+" is the
residual add. Blue parts are changed, dashed ones only start with other values. A blue dot is a changed input.

"Before you implement it" is measured by `comt diagnose`, in small networks with random data:
[all methods and the terms](../../results/diagnose/start.md). Initial values are as stored: numbers near 1, or near a
pattern, are stored as their difference from it; "0 ± 0.02" is mean ± standard deviation. The effect of a parameter is
the change of the logits when it alone is set back to its start.

## By family

| family | methods |
| --- | --- |
"""
COLUMNS = """\
| method | metric | difference | baseline | seeds | verdict |
| --- | --- | ---: | --- | ---: | --- |
"""


@dataclass(frozen=True)
class Result:
    """A cell of a committed table, with the method of its row (`given`) and of its baseline as text."""

    table: Written
    cell: WrittenCell
    difference: Paired
    given: str
    baseline: str

    @property
    def order(self) -> tuple[int, float]:
        """Its group of comparable results, an index of `GROUPS`, and its place there: the best first."""
        if not self.cell.metric.difference.is_relative:
            return 3, -self.difference.mean
        return 0 if self.table.path == SWEEP else 1 if self.table.scale == "evening" else 2, self.difference.mean

    @property
    def short(self) -> str:
        """The difference with its interval, without footnotes."""
        return ours(self.cell).replace("[", r"\[").replace("]", r"\]")

    @property
    def runs(self) -> list[Line]:
        """The finished runs of the row."""
        at = (self.cell.row, self.cell.column, "done")
        return [run for run in self.table.runs if (run["row"], run["column"], run["state"]) == at]

    def rank(self, name: str) -> tuple[int, ...]:
        """Its place in the choice for a card: default options, tuned rate, scale evening, a paper's table and
        value, most seeds."""
        table, no_value, n = self.table, self.cell.paper_difference is None, self.difference.n
        return self.given != name, table.path != SWEEP, table.scale != "evening", table.paper == "ours", no_value, -n


def page() -> str:
    """The whole gallery."""
    found = {name: result_of(name) for name in methods()}
    by_family: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in sorted(found, key=lambda name: (found[name].order if found[name] else (9, 0.0), name)):
        by_family[family_of(name)].append(name)
    text = [HEAD.format(count=len(found))]
    text += [f"| {family} | {', '.join(map(link, names))} |\n" for family, names in by_family.items()]
    text += ["\n## By result\n\nDifferences can be compared within a table only.\n", *by_result(found)]
    for family, names in by_family.items():
        text += [f"\n## {family}\n\n{FAMILIES[family]}\n", *(card(name, found[name]) for name in names)]
    return "".join(text)


def by_result(found: Mapping[str, Result | None]) -> Iterator[str]:
    """The results of all cards, a table per group."""
    for group, (title, text) in enumerate(GROUPS.items()):
        yield f"\n### {title}\n\n{text}\n\n{COLUMNS}"
        results = [(name, result) for name, result in found.items() if result and result.order[0] == group]
        for name, result in sorted(results, key=lambda each: each[1].order):
            verdict, metric = result.cell.verdict.value, result.cell.metric.words
            cells = (link(name), metric, result.short, result.baseline, str(result.difference.n), verdict)
            yield f"| {' | '.join(cells)} |\n"


def card(name: str, result: Result | None) -> str:
    """One method's card."""
    kind = methods()[name]
    file = Path(inspect.getfile(kind)).relative_to(ROOT).as_posix()
    title, equation, about, deviations = parts_of(inspect.getmodule(kind))
    facts = {
        "Networks": ", ".join(text for task, text in NETWORKS.items() if kind.fits(tasks()[task].sites)),
        "Options": options_of(kind) or "none",
        "Deviations from the paper": deviations,
        "Cost": cost_of(name, result),
        "Result": in_full(name, result),
        "In a recipe": f"`method: {line_of(kind)}`",
        "In your model": wrapping_of(name),
        "Code": f"[{file}](../../{file})",
    }
    text = [f"\n### {name} {{ #{anchor(name)} }}\n\n{title}\n{equation}\n{about}\n"]
    text += [f"\n{drawing.block(name, wiring_of(name), kind)}\n"]
    text += (f"\n{term}\n:   {' '.join(fact.split())}\n" for term, fact in facts.items())
    text += [
        f"\n#### Before you implement it {{ #before-{anchor(name)} }}\n\n",
        *(f"{each}\n" for each in before(name)),
    ]
    return "".join(text)


def options_of(kind: type[Method]) -> str:
    """The options of a method with their defaults and meanings."""
    text = []
    for key, field in kind.model_fields.items():
        meaning = recipe_keys.meaning(kind, key)
        default = "required" if field.is_required() else f"default {recipe_keys.default_of(field)}"
        text.append(f"`{key}` ({default}): {meaning if isinstance(meaning, str) else meaning[-1]}.")
    return " ".join(text) and f"{' '.join(text)} [Types](../recipe-keys/methods.md)."


def link(name: str) -> str:
    """A link to a method's card."""
    return f"[{name}](#{anchor(name)})"


def anchor(name: str) -> str:
    """The anchor of a method's card."""
    return name.replace("+", "-and-")


def parts_of(module: Any) -> tuple[str, str, str, str]:
    """Title, equations, explanation and deviations, from the docstring of a method's file."""
    title, _, rest = (module.__doc__ or "").partition("\n")
    equation = "".join(f"\n{match}\n" for match in re.findall(r"\$\$.+?\$\$", rest, re.DOTALL))
    rest = re.sub(r"\$\$.+?\$\$\n*", "", rest, flags=re.DOTALL)
    about, _, deviations = rest.partition("Deviations:")
    return title, equation, about.strip(), deviations.strip() or "none"


def line_of(kind: type[Method]) -> str:
    """A method in a recipe, with the options that have no default."""
    required = [key for key, field in kind.model_fields.items() if field.is_required()]
    return f"{{name: {kind.name}, {', '.join(f'{key}: ...' for key in required)}}}" if required else kind.name


@functools.cache
def wiring_of(name: str) -> Wiring:
    """The wiring of a method with the paper's options; an option without a default names CoMT."""
    kind = methods()[name]
    required = [key for key, field in kind.model_fields.items() if field.is_required()]
    return method_from({"name": name, **{key: {"name": "comt"} for key in required}}).wiring()


def family_of(name: str) -> str:
    """The family of a method, found from its wiring."""
    wiring = wiring_of(name)
    kind = wiring.residual.func if isinstance(wiring.residual, functools.partial) else wiring.residual
    module = kind.__module__.rpartition(".")[2]
    if wiring.widening:
        return "Controls"
    if wiring.gates:
        return "Gates"
    if wiring.exclude or wiring.value_embedding or name == "smear":
        return "Attention" if wiring.exclude else "Token embeddings"
    if module == "hyper_connections" or name == "siamese-norm":
        return "Several residual streams"
    if wiring.shared_values or module in ("attention_residuals", "dense", "skips"):
        return "Reading earlier layers"
    return "Norms and initialisation" if module == "norm_placement" else "Weighted additions"


@functools.cache
def results() -> tuple[Result, ...]:
    """Every difference in per cent or points of the committed tables whose recipe is shipped, with its settings."""
    found = []
    for table in (table for tables in written_below(RESULTS, Reader()).values() for table in tables):
        if not table.cells or table.changed_settings:
            continue
        try:
            recipe = load_recipe(find_recipe(table.runs[0]["recipe"]), catalogue())
        except UserError:
            continue
        known = {row: in_words(given) for row, given in recipe.methods.items()}
        found += [
            Result(table, cell, cell.difference, known[cell.row], known[cell.baseline])
            for cell in table.cells
            if cell.difference and cell.metric.difference.name != "nats" and {cell.row, cell.baseline} <= {*known}
        ]
    return tuple(found)


def result_of(name: str) -> Result | None:
    """The result on a method's card; none of the baselines of all tables."""
    found = [] if name in ("pre-ln", "addition") else [each for each in results() if each.given.split(" (")[0] == name]
    return min(found, key=lambda result: result.rank(name), default=None)


def in_full(name: str, result: Result | None) -> str:
    """A result with its table, seeds and verdict."""
    if result is None:
        return "none: it is a baseline" if name in ("pre-ln", "addition") else "not measured"
    cell, table = result.cell, result.table
    options = "" if result.given == name else f" with `{result.given}`"
    return (
        f"{result.short} in {cell.metric.words}{options} against {result.baseline}; {cell.column}, "
        f"{result.difference.n} seeds, scale {table.scale}; verdict: {cell.verdict.value} "
        f"([{table.path}](../../results/{table.path}.md))"
    )


def cost_of(name: str, result: Result | None) -> str:
    """Parameters, FLOPs and time of a training step from ours/modern; of other methods the result's parameters."""
    row, costs = result.cell.row if result and result.table.path == SWEEP else name, read_lines(COSTS)
    line = next((line for line in costs if line["row"] == row), None)
    if line is None:
        found = [run["extra_parameters_percent"] for run in result.runs] if result else []
        known = f"{float(found[0]):+.2g} % parameters (network of the result); " if found else ""
        return f"{known}FLOPs and step time not measured"
    more = 100 * (int(line["parameters"]) / int(costs[0]["parameters"]) - 1)
    return (
        f"{more:+.2g} % parameters, {float(line['flops_ratio']):.2f} times the FLOPs, "
        f"{float(line['compiled_step_ratio']):.2f} times the time of a compiled training step "
        f"({line['device']}, {line['precision']}, {line['column']})"
    )


def before(name: str, folder: Path = DIAGNOSED) -> Iterator[str]:
    """Lines for those who implement a method, from the CSV files of `comt diagnose`: its start, the effect of the first
    updates, and its parameters with their initial values."""
    rows = [line for line in read_lines(folder / "start.csv") if line["method"].split(" (")[0] == name]
    if not rows:
        yield "Not measured. `comt diagnose --connections none --results results` measures every method."
        return
    line = min(rows, key=lambda line: len(line["method"]))  # the one without options, if there is one
    parameters = [each for each in read_lines(folder / "parameters.csv") if each["method"] == line["method"]]
    options = f" (`{line['method']}`)" * (line["method"] != name)
    stated = line["published"].replace("not said", "nothing")
    yield f"- Start{options}: {distance(name, line)}." + f" Stated in the paper: {stated}." * bool(stated)
    yield from (f"- Start of `{each['method']}`: {distance(name, each)}." for each in rows if each is not line)
    if line["factors"]:
        yield f"- Factors at the start: {line['factors']}."
    if not parameters:
        yield "- No parameters of its own."
        return
    wrong = percent(line["overwritten"])
    yield f"- If new matrices start as N(0, 0.02²) and new biases as 0, the logits at the start change by {wrong}."
    effect = percent(line["effect"])
    yield f"- After 20 updates, setting all new parameters back to their start changes them by {effect}."
    never = [
        f"`{each['parameter']}` ({each['never']} of {each['tensors']})" for each in parameters if each["never"] != "0"
    ]
    never += [INACTIVE.get(part, part) for part in line["asleep"].split(", ") if not part.endswith("gradient")]
    yield f"- Inactive after 20 updates: {', '.join(filter(None, never)) or 'none'}.\n"
    yield "| new parameter | initial value | tensors | no gradient in the first update | effect after 20 updates |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for each in parameters:
        cells = (each["start"], each["tensors"], each["without_gradient"], percent(each["effect"]))
        yield f"| `{each['parameter']}` | {' | '.join(cells)} |"


def distance(name: str, line: Mapping[str, str]) -> str:
    """The distance of the logits at the start from those of the plain network."""
    plain = "Pre-LN" if methods()[name].fits(tasks()["train-lm"].sites) else "plain addition"
    if float(line["difference"]) < 1e-6:
        return f"logits equal {plain}'s to rounding"
    return f"logits differ from {plain}'s by {percent(line['difference'])} of their norm"


def percent(share: str) -> str:
    """A share of a norm, to three digits."""
    return f"{100 * float(share):.3g} %"


def wrapping_of(name: str) -> str:
    """The call that wraps a model of another library, found by calling it; or the reason why none works."""
    import transformers

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2}
    fields, said = methods()[name].model_fields, "it changes widths"
    if not methods()[name].fits(tasks()["train-lm"].sites):
        return "no `wrap`: it is for ResNets"
    for given, more in (({}, ""), ({"scale": 2}, ", scale=2"), ({"start": "paper"}, ', start="paper"')):
        if "like" in fields or ("scale" in given and "scale" not in fields):
            continue
        try:
            wrap(transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=9, **sizes)), name, **given)
        except UserError as error:
            said = error.message.rpartition(": ")[2]
        else:
            return f'`wrap(model, "{name}"{more})`' + ": not the identity at the start" * ("start" in given)
    return f"no `wrap`: {said}"
