"""Runs: their description (`RunSpec` and its id), the plan of a recipe, and run directories. Does not import torch."""
