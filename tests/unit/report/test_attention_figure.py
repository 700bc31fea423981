"""The heat map of attention: a row for each target token, a column for each source token, named in any script."""

from __future__ import annotations

import numpy as np
import pytest

from comt_cli.report import figures

SOURCE = ["▁The", "▁train", "▁to", "▁Ha", "noi", "▁leaves", "▁at", "▁7", ":05", "▁on", "▁Monday", ".", "</s>"]
TARGET = ["▁Chuyến", "▁tàu", "▁đi", "▁Hà", "▁Nội", "▁khởi", "▁hành", "▁lúc", "▁7", ":05", "▁Thứ", "▁Hai", ".", "</s>"]


def weights(rows: int, columns: int) -> np.ndarray:
    drawn = np.random.default_rng(1).gumbel(size=(rows, columns)) * 2
    return np.exp(drawn) / np.exp(drawn).sum(1, keepdims=True)


def test_the_table_has_the_names_of_the_tokens():
    drawn = weights(len(TARGET), len(SOURCE))
    figure, read = figures.draw_attention(drawn, TARGET, SOURCE, ("word", "region of the image"))
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == ("word", "region of the image")
    assert list(read["target"])[:5] == ["1 Chuyến", "2 tàu", "3 đi", "4 Hà", "5 Nội"]
    assert list(read.columns)[:6] == ["target", "1 The", "2 train", "3 to", "4 Ha", "5 -noi"]
    np.testing.assert_allclose(read.drop(columns="target").to_numpy(), drawn, rtol=1e-5)


def test_regions_are_coloured_under_the_ink_of_the_image():
    pixels = np.full((48, 48, 3), (229, 207, 158), dtype=np.uint8)
    pixels[4:12, 8:16] = 255, 210, 0  # nearly as bright as the paper
    drawn = weights(7, 36)
    said = ["a", "yellow", "square", "with", "a", "7", "</s>"]
    figure, frame = figures.draw_captioned(pixels, " ".join(said[:-1]), drawn, said)
    assert list(frame)[:8] == ["word", "1-1", "1-2", "1-3", "1-4", "1-5", "1-6", "2-1"]
    np.testing.assert_allclose(frame.drop(columns="word").to_numpy(), drawn)
    _, *words = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in words] == [f"{number} {word}" for number, word in enumerate(said, 1)]
    for axes in words:
        colours, ink = axes.images
        assert colours.get_clim() == (0, drawn.max())
        opaque = np.asarray(ink.get_array())[..., 3]
        assert (opaque[4:12, 8:16] > 0.7).all()
        assert opaque.sum() == opaque[4:12, 8:16].sum(), "the paper is bare"
    with pytest.raises(ValueError, match="35 regions are no square grid"):
        figures.draw_captioned(pixels, "a", weights(1, 35), ["a"])
