"""Figures of trained networks, one file each: numbers, sentences of the caption, drawing (see `ModelFigure`)."""
