"""Numbers that took time to find, remembered in the cache folder by all that they depend on.

A file is JSON lines that are only ever added to, so that processes can share it without a lock. Nothing here fails: a
line that is damaged was never there, and on a disk that refuses nothing is remembered.
"""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

from comt_cli.files import cache_folder, canonical_json, parse_json, sha256


class LineCache:
    """A cache of values by keys, both of which JSON can represent. `path` need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        values = {}
        with contextlib.suppress(OSError):
            for line in self.path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # not JSON, not our object, not UTF-8
                    entry = parse_json(line.decode())
                    values[entry["key"]] = entry["value"]
        return values

    def get(self, key: Any) -> Any:
        """The value put there for `key`, by whatever process before the first look; None if there is none."""
        return self._values.get(sha256(canonical_json(key)))

    def put(self, key: Any, value: Any) -> None:
        """Remember `value`, if the disk lets us."""
        name = sha256(canonical_json(key))
        self._values[name] = value
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as handle:
                handle.write(f"\n{json.dumps({'key': name, 'value': value})}\n")  # the line before may be cut short


_cache_at = functools.lru_cache(maxsize=32)(LineCache)


def line_cache(name: str, version: str) -> LineCache:
    """The cache `name` of values that were found by `version` of what finds them."""
    return _cache_at(cache_folder() / name / f"{sha256(version)[:16]}.jsonl")
