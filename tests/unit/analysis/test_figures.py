"""Files of a figure, its caption, its style, and the names of tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from comt_cli.errors import StorageError
from comt_cli.report import figures
from comt_cli.report.caption import Caption
from comt_cli.report.figures.lines import robust_ends, token_labels
from comt_cli.report.figures.style import layer_ticks, page_figure, series_colours, style

# A dollar sign (a formula to matplotlib), signs that the font lacks, spaces, a line break, a very long word.
PIECES = ["▁Once", "▁a", "▁king", "dom", "$", "日本", "▁", "\\n", "<0x0A>", "▁incomprehensibilities", "_x", "</s>"]
CAPTION = Caption("What is shown?", "pre-ln: 480 steps", ("Lines are 95 % of it",), ("Mean 0.80.",))
FRAME = pd.DataFrame({"layer": [1, 2, 3], "token": ["a", "b", ","], "value": [1 / 3, 2e-9, 12345678.0]})


def drawn() -> Figure:
    with style():
        figure = page_figure(2)
        axes = figure.subplots()
        axes.plot(FRAME["layer"], FRAME["value"])
        axes.set_xlabel("layer")
    return figure


@pytest.mark.parametrize("log", [False, True])
def test_a_few_far_values_do_not_rule_a_scale_and_even_ones_all_stay(log) -> None:
    even = np.linspace(1, 2, 30)
    ends = robust_ends(even, log=log)
    assert (ends.low, ends.high) == (1, 2)
    ends = robust_ends([*even, 40, 41, 45], log=log)
    assert (ends.low, ends.high) == (1, 2)
    assert [ends.is_off(value) for value in (1.0, 2.0, 40.0)] == [False, False, True]
    ends = robust_ends([0.01, *even, 4000], log=log)
    assert (ends.low, ends.high) == ((1, 2) if log else (0.01, 2))
    both = robust_ends([*even, *(even + 40)], log=log)
    assert (both.low, both.high) == (1, 42), "half of the values are no outliers"
    assert robust_ends([3.0, 3.0, 3.0 + 1e-9], log=log).high == 3.0 + 1e-9
    assert robust_ends([], log=log).low == 0


def test_files_are_written_together_and_again_the_same(tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "a" / "x", tmp_path / "c" / "x"):
        paths = figures.write_figure(drawn(), FRAME, folder, "figure", CAPTION)
        assert [path.name for path in paths] == [f"figure.{kind}" for kind in ("png", "pdf", "txt", "tex", "csv")]
        assert len(list(folder.iterdir())) == 5
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG")
    assert contents[0][1].startswith(b"%PDF")
    assert b"CreationDate" not in contents[0][1]
    assert contents[0][4].decode() == 'layer,token,value\n1,a,0.333333\n2,b,2e-09\n3,",",1.23457e+07\n'


def test_a_folder_that_cannot_be_made_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        figures.write_figure(drawn(), FRAME, tmp_path / "file" / "x", "figure", CAPTION)


def test_a_caption_is_text_and_latex() -> None:
    assert CAPTION.text() == "What is shown? pre-ln: 480 steps. Lines are 95 % of it. Mean 0.80.\n"
    latex = CAPTION.latex("figure_1", "smoke-figure_1")
    assert r"\caption{\textbf{What is shown?} pre-ln: 480 steps. Lines are 95 \% of it. Mean 0.80.}" in latex
    assert r"{figure_1.pdf}" in latex
    assert r"\label{fig:smoke-figure-1}" in latex
    assert r"]{figure_1 $&.pdf}" in CAPTION.latex("figure_1 $&", "x")
    (line,) = [line for line in CAPTION.latex("50%#~a", "x").splitlines() if "includegraphics" in line]
    assert line.endswith(r"{50\csname @percentchar\endcsname \string#\string~a.pdf}")


def test_token_names_can_be_read_and_drawn() -> None:
    assert token_labels(PIECES) == [
        "1 Once",
        "2 a",
        "3 king",
        "4 -dom",
        r"5 \$",
        r"6 \u65e5\u672c",
        "7 ␣",
        r"8 \n",
        r"9 \n",
        "10 incomprehensi…",
        "11 _x",
        "12 </s>",
    ]
    assert token_labels(["▁", "K", "ing", "▁at", ".", "x"]) == ["1 ␣", "2 K", "3 -ing", "4 at", "5 .", "6 x"]
    assert token_labels(["O", "n", "<0x20>", "<0xE2>"]) == ["1 O", "2 n", "3 ␣", "4 <0xE2>"]


def test_colours_and_ticks() -> None:
    for count in (1, 7, 8, 24):
        assert len({str(colour) for colour in series_colours(count)}) == count
    assert layer_ticks(1) == [1]
    assert layer_ticks(6) == [1, 2, 3, 4, 5, 6]
    assert layer_ticks(12) == [2, 4, 6, 8, 10, 12]
    assert layer_ticks(30) == [1, 5, 10, 15, 20, 25, 30]
    assert len(layer_ticks(1000)) <= 7


def test_the_users_settings_stay_and_do_not_matter() -> None:
    mpl.rcParams["font.size"] = 31
    try:
        figure = drawn()
        assert mpl.rcParams["font.size"] == 31
        assert figure.axes[0].xaxis.label.get_fontsize() == 8
    finally:
        mpl.rcParams["font.size"] = mpl.rcParamsDefault["font.size"]


def test_drawing_needs_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, comt_cli.report.figures; "
        "sys.exit(', '.join({'torch', 'matplotlib.pyplot'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
