"""An ordinary mistake in a method's file is told with its place; a defect of the program keeps its traceback."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planning_on import plan_on

from comt_cli import methods as room
from comt_cli.errors import UserError
from comt_cli.methods import Method, catalogue, methods, mistakes
from comt_cli.methods.base import Declared, declared_in
from comt_cli.models import accounting
from comt_cli.models.accounting import Cost, Network, count
from comt_cli.models.build import wiring_of
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import load_recipe
from comt_cli.tasks.settings.language import ModelSettings

ROOT = Path(__file__).resolve().parents[2]
FILE = """from __future__ import annotations
from typing import ClassVar
from comt_cli.methods.base import Method, Wiring

class HalfBranch(Method):
    name: ClassVar[str] = "half-branch"
    streams: ClassVar = ("maps",)

    def wiring(self) -> Wiring:
        from comt_cli.layers.residual.norm_placement import PreNorm
        return Wiring(PreNorm)
"""
PLACE = r"method half-branch \(comt_cli/methods/half_branch\.py, line {}\): {}"

Write = Callable[[str, str], None]


@contextlib.contextmanager
def room_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *others: str) -> Iterator[Path]:
    """A package of methods of its own, beside the `others`."""
    methods_in = folder / "comt_cli" / "methods"
    methods_in.mkdir(parents=True)
    monkeypatch.setattr(room, "__path__", [str(methods_in), *others])
    monkeypatch.setattr(mistakes, "_METHODS", methods_in.resolve())
    monkeypatch.setattr(mistakes, "_PACKAGE", methods_in.resolve().parent)
    room._all_methods.cache_clear()
    yield methods_in
    room._all_methods.cache_clear()
    for name in ("half_branch", "other_branch", "learnable_scale"):
        sys.modules.pop(f"comt_cli.methods.{name}", None)
        vars(room).pop(name, None)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts `half_branch.py` with a mistake into a package of its own, whose only method it is."""
    with room_in(tmp_path, monkeypatch) as folder:

        def written(right: str, wrong: str) -> None:
            assert right in FILE
            (folder / "half_branch.py").write_text(FILE.replace(right, wrong), encoding="utf-8")

        yield written


@pytest.mark.parametrize(
    ("right", "wrong", "line", "says"),
    [
        ("import Method,", "import Methods,", 3, "cannot import name 'Methods'"),
        ("import ClassVar", "import ClassVar\nimport no_such_package", 3, "No module named 'no_such_package'"),
        ("(Method):", "(Method)", 5, "expected ':'"),
        ("import PreNorm", "import PreNorms", 10, "cannot import name 'PreNorms'"),
        ("(PreNorm)", "(PreNorm, sites=())", 11, "TypeError: .*unexpected keyword argument 'sites'"),
    ],
)
def test_a_mistake_at_the_import_and_in_the_wiring(write: Write, right: str, wrong: str, line: int, says: str) -> None:
    write(right, wrong)
    with pytest.raises(UserError, match=PLACE.format(line, says)) as told:
        wiring_of({"name": "half-branch"})
    assert told.value.exit_status == 2


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("def wiring(", "def image_wiring(", "HalfBranch has no wiring"),
        ("import Method,", "import ConnectionMethod as Method,", "no residual connection 'half-branch'"),
        (
            '"half-branch"\n',
            '"half-branch"\n    scale: Positive = 0.5\n',
            "is not defined: Positive",
        ),
    ],
)
def test_a_class_that_cannot_be_used(write: Write, right: str, wrong: str, says: str) -> None:
    write(right, wrong)
    with pytest.raises(UserError, match=rf"half_branch\.py\): .*{says}"):
        methods()


def test_a_method_has_the_name_of_its_file(write: Write) -> None:
    write('    name: ClassVar[str] = "half-branch"\n', "")
    assert list(methods()) == ["half-branch"]


def test_two_files_with_one_name(write: Write, tmp_path: Path) -> None:
    write("", "")
    assert list(methods()) == ["half-branch"]
    wiring_of({"name": "half-branch"})
    room._all_methods.cache_clear()
    (tmp_path / "comt_cli" / "methods" / "other_branch.py").write_text(FILE, encoding="utf-8")
    with pytest.raises(UserError, match=r"other_branch\.py\): half_branch\.py has a method 'half-branch' already"):
        methods()


def test_a_defect_of_the_program_keeps_its_traceback(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the method's file called what fails."""
    (tmp_path / "comt_cli" / "a_part_of_ours.py").write_text("def part():\n    return 1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "comt_cli"))
    write("import PreNorm\n", "import PreNorm\n        import a_part_of_ours\n        a_part_of_ours.part()\n")
    with pytest.raises(ZeroDivisionError):
        wiring_of({"name": "half-branch"})
    monkeypatch.delitem(sys.modules, "a_part_of_ours")
    monkeypatch.setattr(Method, "model_validate", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wiring_of({"name": "half-branch"})


EXAMPLE = re.findall(r"^```python\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M | re.S)[0]
SHAPE = ModelSettings(size="tiny", width=16, ffn_width=24, layers=2, heads=2).model_dump_json()


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Counts a small network with the example of CONTRIBUTING.md, a mistake in it."""
    with room_in(tmp_path, monkeypatch, *room.__path__) as folder:

        def count_with(right: str, wrong: str) -> None:
            assert right in EXAMPLE
            (folder / "learnable_scale.py").write_text(EXAMPLE.replace(right, wrong), encoding="utf-8")
            network = Network(SHAPE, '{"vocabulary": 11}', '{"name": "learnable-scale"}', "pre-ln")
            if unused := count(network)[0].unused:
                raise UserError(unused)

        yield count_with


SCALE = "return {"
USED = "self.other = nn.Parameter(torch.empty(1))\n            self.scale = nn"
IN_USE = [
    (
        "__init__(self)",
        "__init__(self, size)",
        "class LearnableScale",
        "missing 1 required positional argument: 'size'",
    ),
    ("residual_connection(self.residual),", "lambda **_: None,", "class LearnableScale", "TypeError: .*lambda"),
    ("return Wiring(", "Wiring(", "class LearnableScale", r"wiring\(\) returns NoneType, not Wiring"),
    (SCALE, "return None and {", "class ScaleGate", "'NoneType' object has no attribute 'values'"),
    ("torch.empty(1)", "torch.empty(3)", "class ScaleGate", "RuntimeError: .*broadcast"),
    ("self.scale = nn", USED, "class ScaleGate", "ScaleGate never uses its parameter other"),
]


@pytest.mark.parametrize(("right", "wrong", "at", "says"), IN_USE)
def test_a_mistake_where_the_network_is_built_or_run(
    counted: Write, tmp_path: Path, right: str, wrong: str, at: str, says: str
) -> None:
    with pytest.raises(UserError, match=says) as told:
        counted(right, wrong)
    lines = (tmp_path / "comt_cli/methods/learnable_scale.py").read_text(encoding="utf-8").splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.strip().startswith(at)]
    assert told.value.message.startswith(f"method learnable-scale (comt_cli/methods/learnable_scale.py, line {line}): ")
    assert told.value.exit_status == 2


def test_no_mistake(counted: Write) -> None:
    """Nor is a parameter that some blocks alone use."""
    counted("", "")
    room._all_methods.cache_clear()
    sys.modules.pop("comt_cli.methods.learnable_scale", None)
    one = "nn.Parameter(torch.empty(1))"
    other = f"self.other = {one}\n            self.scale = self.other if layer == 0 else {one}"
    right = EXAMPLE[EXAMPLE.index("(self) -> None:") : EXAMPLE.index(one) + len(one)]
    counted(right, right.replace("(self)", "(self, layer: int)").replace(f"self.scale = {one}", other))


@pytest.mark.parametrize(
    ("file", "error"), [("learnable_scale", MemoryError), ("learnable_scale", OSError), ("", KeyError)]
)
def test_what_no_method_can_cause_is_not_blamed_on_its_file(
    counted: Write, monkeypatch: pytest.MonkeyPatch, file: str, error: type[Exception]
) -> None:
    """Nor is what the plain network cannot do either."""

    def fails(_model: object, _output: object, of: str) -> str:
        if file in of:
            raise error
        return ""

    monkeypatch.setattr(accounting, "_unused", fails)
    with pytest.raises(error):
        counted("", "")


def test_runs_are_refused_for_an_unused_parameter_before_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(find_recipe("table3"), catalogue())
    specs = plan_on(recipe, "smoke", lambda _: ("asked", "content"), rows="pre-ln", seeds=[1])
    monkeypatch.setattr(
        accounting, "cost_of", lambda _: Cost(1, 1, 1, 1, 1, "never uses its parameter", 0, 0, {}, 0, [], 0, 0)
    )
    with pytest.raises(UserError, match="never uses its parameter"):
        accounting.check_methods(specs)


def test_a_mistake_while_training_names_the_line(write: Write, tmp_path: Path) -> None:
    write("        return Wiring(PreNorm)\n", "        return 1 / 0\n")
    with pytest.raises(ZeroDivisionError) as raised:
        methods()["half-branch"]().wiring()
    assert mistakes.with_place("why", raised.value) == "why (methods/half_branch.py, line 11)"
    assert mistakes.with_place("why", ValueError()) == "why"


CONNECTION = 'class A(ResidualConnection):\n    name: ClassVar[str] = "a"\n    needs: ClassVar = ("states",)\n'


def test_a_connection_is_read_with_annotations_and_without(tmp_path):
    (tmp_path / "one.py").write_text(f'{CONNECTION}\nclass B(A):\n    name = "b"\n\nclass C:\n    name: str\n')
    module = "comt_cli.layers.residual.one"
    assert declared_in(tmp_path) == {"a": Declared(module, "A", ("states",)), "b": Declared(module, "B", ())}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("class B:\n    name = NAME\n", r"two\.py, line 2\): name of B is not a literal"),
        (
            "class B:\n    name = 'b'\n    needs: ClassVar = A.needs\n",
            r"two\.py, line 3\): needs of B is not a literal",
        ),
        ("\n\nclass B:\n    name = 'a'\n", r"two\.py, line 3\): A in .*\.one has the name 'a' already"),
    ],
)
def test_a_connection_that_cannot_be_read_is_told_with_its_line(tmp_path, text, place):
    (tmp_path / "one.py").write_text(CONNECTION)
    (tmp_path / "two.py").write_text(text)
    with pytest.raises(UserError, match=place):
        declared_in(tmp_path)
