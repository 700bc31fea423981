"""The registry of figures, and outliers in them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from comt_cli.analysis.figures.gate_values import GateValues
from comt_cli.analysis.figures.residual_stream import ResidualStream
from comt_cli.analysis.model_figure import ModelFigure, model_figures


def test_a_file_is_found_by_its_name() -> None:
    assert all(issubclass(kind, ModelFigure) and kind.name == name for name, kind in model_figures().items())
    assert len(model_figures()) == 9


@pytest.mark.parametrize("off", [{}, {1: 5.0, 2: -3.0, 3: 6.0}])
def test_outliers_are_marked_beyond_the_frame(off) -> None:
    """Three tokens of four layers have the values `off` in these layers; the rest is near 1."""
    places = pd.MultiIndex.from_product([range(1, 5), range(9)], names=["layer", "position"]).to_frame(index=False)
    near = pd.Series(np.linspace(0.9, 1.0, len(places)))
    far = places["layer"].map(off).where(places["position"] < 3)
    frame = places.assign(token="a", site="v_proj", value=far.fillna(near), cosine=far.fillna(near), norm_ratio=near)
    for figure in (GateValues(), GateValues(shared=False), ResidualStream()):
        texts = [text.get_text() for axes in figure.draw(frame).axes for text in axes.texts]
        marked = [text.strip("▲▼ ") for text in texts if {"▲", "▼"} & {*text}]
        assert sorted(map(float, marked)) == sorted(off.values())
