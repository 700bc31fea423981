"""How many images of a split are used."""

from __future__ import annotations

from comt_cli.errors import UserError


def how_many(key: str, wanted: int | None, there_are: int, name: str) -> int:
    """`wanted` images, or all. Raises `UserError` where there are fewer."""
    if wanted is not None and wanted > there_are:
        raise UserError(
            f"{key}: {wanted:,} images are asked for; this split of {name} has {there_are:,}",
            f"Use {key}: {there_are} or fewer; leave it out to use all.",
        )
    return wanted or there_are
