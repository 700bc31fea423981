"""The residual addition of a gated site, and the norm behind it."""
