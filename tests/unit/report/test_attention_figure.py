"""The heat map of attention: a row for each target token, a column for each source token, named in any script."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from comt_cli.report import figures
from comt_cli.report.caption import Caption

SOURCE = ["▁The", "▁train", "▁to", "▁Ha", "noi", "▁leaves", "▁at", "▁7", ":05", "▁on", "▁Monday", ".", "</s>"]
TARGET = ["▁Chuyến", "▁tàu", "▁đi", "▁Hà", "▁Nội", "▁khởi", "▁hành", "▁lúc", "▁7", ":05", "▁Thứ", "▁Hai", ".", "</s>"]


def weights(rows: int, columns: int) -> np.ndarray:
    drawn = np.random.default_rng(1).gumbel(size=(rows, columns)) * 2
    return np.exp(drawn) / np.exp(drawn).sum(1, keepdims=True)


def test_the_table_has_names_and_rows_that_sum_to_1(tmp_path):
    drawn = weights(len(TARGET), len(SOURCE))
    figure, frame = figures.draw_attention(drawn, TARGET, SOURCE)
    said = Caption("What each token is predicted from", "a network")
    figures.sign(figure, said.trained)
    paths = figures.write_figure(figure, frame, tmp_path, "attention-1", said)
    assert [path.suffix for path in paths] == [".png", ".pdf", ".txt", ".tex", ".csv"]
    read = pd.read_csv(paths[-1])
    assert list(read["target"])[:5] == ["1 Chuyến", "2 tàu", "3 đi", "4 Hà", "5 Nội"]
    assert list(read.columns)[:6] == ["target", "1 The", "2 train", "3 to", "4 Ha", "5 -noi"]
    np.testing.assert_allclose(read.drop(columns="target").sum(axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(read.drop(columns="target").to_numpy(), drawn, rtol=1e-5)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(frame["target"])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (120, 90)])
def test_any_length_has_room_on_a_page(rows, columns):
    figure, _ = figures.draw_attention(weights(rows, columns), ["▁từ"] * rows, ["▁word"] * columns)
    width, height = figure.get_size_inches()
    assert 2 < width <= 7.2
    assert 2 < height <= 9
    axes = figure.axes[0]
    assert axes.get_yticklabels()[0].get_fontsize() <= 72 * height / rows
