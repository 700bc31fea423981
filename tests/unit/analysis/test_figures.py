"""Files of a figure, its caption, the names of tokens, and outliers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from comt_cli.errors import StorageError
from comt_cli.report import figures
from comt_cli.report.caption import Caption
from comt_cli.report.figures.lines import robust_ends, token_labels

# A dollar sign (a formula to matplotlib), signs that the font lacks, spaces, a line break, a very long word.
PIECES = ["▁Once", "▁a", "▁king", "dom", "$", "日本", "▁", "\\n", "<0x0A>", "▁incomprehensibilities", "_x", "</s>"]


def test_files_are_written_together_and_again_the_same(tmp_path: Path) -> None:
    frame = pd.DataFrame({"layer": [1, 2, 3], "token": ["a", "b", ","], "value": [1 / 3, 2e-9, 12345678.0]})
    contents = []
    for folder in (tmp_path / "a" / "x", tmp_path / "c" / "x"):
        figure = Figure()
        figure.subplots().plot(frame["layer"], frame["value"])
        paths = figures.write_figure(figure, frame, folder, "figure", Caption("What?", "pre-ln, 95 %"))
        assert [path.name for path in paths] == [f"figure.{kind}" for kind in ("png", "pdf", "txt", "tex", "csv")]
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    assert b"CreationDate" not in contents[0][1]
    assert contents[0][2].decode() == "What? pre-ln, 95 %.\n"
    assert rb"\caption{\textbf{What?} pre-ln, 95 \%.}" in contents[0][3]
    assert contents[0][4].decode() == 'layer,token,value\n1,a,0.333333\n2,b,2e-09\n3,",",1.23457e+07\n'
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        figures.write_figure(figure, frame, tmp_path / "file" / "x", "figure", Caption("", ""))


@pytest.mark.parametrize("log", [False, True])
def test_a_few_far_values_do_not_rule_a_scale_and_even_ones_all_stay(log) -> None:
    even = np.linspace(1, 2, 30)
    ends = robust_ends(even, log=log)
    assert (ends.low, ends.high) == (1, 2)
    ends = robust_ends([*even, 40, 41, 45], log=log)
    assert (ends.low, ends.high) == (1, 2)
    assert [ends.low <= value <= ends.high for value in (1.0, 2.0, 40.0)] == [True, True, False]
    ends = robust_ends([0.01, *even, 4000], log=log)
    assert (ends.low, ends.high) == ((1, 2) if log else (0.01, 2))
    both = robust_ends([*even, *(even + 40)], log=log)
    assert (both.low, both.high) == (1, 42), "half of the values are no outliers"
    assert robust_ends([3.0, 3.0, 3.0 + 1e-9], log=log).high == 3.0 + 1e-9
    assert robust_ends([], log=log).low == 0


def test_token_names_can_be_read_and_drawn() -> None:
    names = ["Once", "a", "king", "-dom", r"\$", r"\u65e5\u672c", "␣", r"\n", r"\n", "incomprehensi…", "_x", "</s>"]
    assert token_labels(PIECES) == [f"{number} {name}" for number, name in enumerate(names, start=1)]
    assert token_labels(["▁", "K", "ing", "▁at", ".", "x"]) == ["1 ␣", "2 K", "3 -ing", "4 at", "5 .", "6 x"]
    assert token_labels(["O", "n", "<0x20>", "<0xE2>"]) == ["1 O", "2 n", "3 ␣", "4 <0xE2>"]
