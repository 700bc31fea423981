"""The maps of attention: a row for each target token, a column for each source token or region, named in any script."""

from __future__ import annotations

import numpy as np
import pytest

from comt_cli.report.figures import lines


def test_the_table_has_the_names_of_the_tokens_and_of_the_regions():
    weights = np.random.default_rng(1).dirichlet(np.ones(36), size=5)
    source = ["▁The", "▁train", "▁to", "▁Ha", "noi", *["▁x"] * 31]
    _, read = lines.draw_attention(weights, ["▁Chuyến", "▁tàu", "▁đi", "▁Hà", "▁Nội"], source)
    assert list(read["target"]) == ["1 Chuyến", "2 tàu", "3 đi", "4 Hà", "5 Nội"]
    assert list(read.columns)[:6] == ["target", "1 The", "2 train", "3 to", "4 Ha", "5 -noi"]
    np.testing.assert_allclose(read.drop(columns="target").to_numpy(), weights, rtol=1e-5)
    pixels = np.full((48, 48, 3), (229, 207, 158), dtype=np.uint8)
    pixels[4:12, 8:16] = 255, 210, 0  # nearly as bright as the paper
    figure, frame = lines.draw_captioned(pixels, "a 7", weights, ["a", "yellow", "square", "7", "</s>"])
    assert list(frame)[:8] == ["word", "1-1", "1-2", "1-3", "1-4", "1-5", "1-6", "2-1"]
    np.testing.assert_allclose(frame.drop(columns="word").to_numpy(), weights)
    colours, ink = figure.axes[1].images
    assert colours.get_clim() == (0, weights.max())
    opaque = np.asarray(ink.get_array())[..., 3]
    assert opaque[4:12, 8:16].min() > 0.7
    assert opaque.sum() == opaque[4:12, 8:16].sum(), "the paper is bare"
    with pytest.raises(ValueError, match="35 regions are no square grid"):
        lines.draw_captioned(pixels, "a", weights[:, :35], ["a"])
