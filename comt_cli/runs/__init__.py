"""Runs: what they are (`RunSpec` and its id), what a recipe means, and the directories that hold them. No torch."""
