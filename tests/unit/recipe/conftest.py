"""The small recipe, for tests that break or change it."""

from small_recipe import load, small

__all__ = ["load", "small"]
