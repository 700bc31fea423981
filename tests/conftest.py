"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# Few examples, and the same ones every time: the suite stays quick, and a failure can be seen again.
settings.register_profile("comt", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("comt")
