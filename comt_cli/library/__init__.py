"""comt as a library: what works on models outside of a recipe."""
