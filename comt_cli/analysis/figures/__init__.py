"""Figures of trained networks, one file each: numbers, caption sentences, drawing (see `ModelFigure`)."""
