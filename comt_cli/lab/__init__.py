"""Measurements of speed and memory, and of networks before any training; nothing imports this package."""

from comt_cli.errors import UserError


def whole_numbers(text: str, option: str) -> list[int]:
    """`5,20` as a list. Raises `UserError` where a part is no whole number from 1."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"{option} {text}: give whole numbers from 1", f"for instance {option} 1,16")
    return [int(part) for part in parts]
