"""A stand-in for the Hugging Face hub: serves the data sets of a folder to the real clients, over HTTP.

A data set is a folder `<owner>/<name>/<revision>` with files. Clients find the server by `HF_ENDPOINT`, which they read
when they are imported: they run in processes of their own (`Client`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

_API = re.compile(
    r"/api/datasets/(?P<name>[^/]+(/(?!revision|tree|paths-info)[^/]+)?)(/(?P<what>revision|tree|paths-info)/(?P<rest>.*))?"
)
_FILE = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


def commit_of(name: str, revision: str) -> str:
    """The commit of a branch."""
    return hashlib.sha1(f"{name}@{revision}".encode()).hexdigest()


class FakeHub(ThreadingHTTPServer):
    """`moved`: canonical names by older ones. `heads`: other folders by name and branch. `gated`: names whose files
    need permission. `asked`: all paths so far. `breaks_after`: the number of data requests after which they fail, with
    a status that clients do not try again."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moved: dict[str, str] = {}
        self.gated: set[str] = set()
        self.heads: dict[tuple[str, str], str] = {}
        self.asked: list[str] = []
        self.breaks_after: int | None = None
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.server_port}"
        return {"HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}

    def folder(self, name: str, revision: str) -> Path | None:
        """The files of a branch or commit."""
        revision = self.heads.get((name, revision), revision)
        for branch in sorted((self.root / name).iterdir()) if (self.root / name).is_dir() else ():
            if unquote(revision) in (unquote(branch.name), commit_of(name, unquote(branch.name))):
                return branch
        return None


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._answer(self.rfile.read(length).decode())

    def do_GET(self) -> None:
        self._answer()

    def _answer(self, body: str = "") -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {unquote(path)}")
        if match := _FILE.fullmatch(path):
            self._file(match["name"], match["revision"], unquote(match["path"]))
        elif match := _API.fullmatch(path):
            name = self.server.moved.get(match["name"], match["name"])
            what, rest = match["what"] or "revision", match["rest"] or "main"
            revision, _, below = rest.partition("/") if what == "tree" else (rest, "", "")
            self._api(name, what, unquote(revision), unquote(below), body)
        else:
            self._refuse(404, "EntryNotFound")

    def _api(self, name: str, what: str, revision: str, below: str, body: str) -> None:
        if not (self.server.root / name).is_dir():
            return self._refuse(401, "RepoNotFound")
        folder = self.server.folder(name, revision)
        if folder is None:
            return self._refuse(404, "RevisionNotFound")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if what == "tree":
            inside = [
                path for path in files if not below or path.relative_to(folder).as_posix().startswith(f"{below}/")
            ]
            entries = [self._entry(folder, path) for path in inside]
            folders = {
                p.relative_to(folder).as_posix() for path in inside for p in path.parents if p.is_relative_to(folder)
            }
            above = {".", below, *(p.as_posix() for p in Path(below).parents)}
            return self._json(
                [*({"type": "directory", "path": p, "oid": "0"} for p in sorted(folders - above)), *entries]
            )
        if what == "paths-info":
            wanted = re.findall(r"paths=([^&]*)", body) or json.loads(body).get("paths", [])
            every = {path.relative_to(folder).as_posix(): self._entry(folder, path) for path in files}
            return self._json([every[unquote(path)] for path in wanted if unquote(path) in every])
        branch = unquote(folder.name)
        card = folder / "README.md"
        data = yaml.safe_load(card.read_text().split("---")[1]) if card.exists() else {}
        siblings = [{"rfilename": path.relative_to(folder).as_posix()} for path in files]
        return self._json(
            {"id": name, "sha": commit_of(name, branch), "siblings": siblings, "cardData": data, "tags": []}
        )

    def _file(self, name: str, revision: str, path: str) -> None:
        folder = self.server.folder(self.server.moved.get(name, name), revision)
        if folder is None:
            return self._refuse(404, "RevisionNotFound")
        if name in self.server.gated:
            return self._refuse(403, "GatedRepo")
        file = folder / path
        if not file.is_file():
            return self._refuse(404, "EntryNotFound", commit_of(name, unquote(folder.name)))
        content = file.read_bytes()
        if self.command == "GET" and path != "README.md" and self.server.breaks_after is not None:
            self.server.breaks_after -= 1
            if self.server.breaks_after < 0:
                return self._refuse(410, "Broken")
        size, status = len(content), 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            content, status = content[int(asked[1]) : int(asked[2] or size) + 1], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", commit_of(name, unquote(folder.name)))
        self.send_header("ETag", f'"{hashlib.sha1(file.read_bytes()).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        return None

    def _entry(self, folder: Path, path: Path) -> dict[str, object]:
        oid = hashlib.sha1(path.read_bytes()).hexdigest()
        return {"type": "file", "path": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "oid": oid}

    def _json(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: int, code: str, commit: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving(root: Path) -> Iterator[FakeHub]:
    """A hub with the data sets of `root`."""
    hub = FakeHub(root)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


CLIENT = """
import json, os, signal, sys
from comt_cli.data.text import dataset
from comt_cli.data.text.settings import DataSettings, Kind
from comt_cli.errors import UserError

settings, part_bytes, parts = json.loads(sys.argv[1])
write_json = dataset.write_json

def dying(path, value):
    write_json(path, value)
    if path.name == f"part-{parts - 1:05d}.json":
        os.kill(os.getpid(), signal.SIGKILL)

dataset.write_json = dying
for given in settings:
    kind = Kind(DataSettings(**given), part_bytes=part_bytes)
    told = {"fingerprint": kind.fingerprint(), "known": kind.known_content(kind.fingerprint())}
    try:
        data = kind.prepare()
        told |= {"content": data.content_hash, "parts": len(data._manifest.parts), **data.facts}
        told |= {split: [data.split(split).documents, data.split(split).tokens] for split in ("train", "validation")}
        rows = (split.batch([0]).tokens[0].tolist() for split in (data.train, data.validation))
        told |= {"first": [*map(data.tokenizer.decode, rows)]}
    except UserError as error:
        told |= {"error": error.message, "hint": error.hint}
    print(json.dumps(told), flush=True)
"""
"""Prepares data, and prints what came of it. It dies, as under kill -9, when it has written `parts` (0: never)."""


@dataclass
class Client:
    """Processes with a cache of their own, that reach this hub, or no network."""

    cache: Path
    hub: FakeHub | None = None

    def prepare(
        self, *settings: dict[str, Any], part_bytes: int = 1 << 27, dies_after: int = 0
    ) -> list[dict[str, Any]]:
        """What each of the settings came to: fingerprint, content and so on, or an error."""
        where = {"HF_HUB_OFFLINE": "1"} if self.hub is None else self.hub.environment
        environment = {**os.environ, "COMT_CACHE": str(self.cache), "HF_HOME": str(self.cache / "hf"), **where}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        command = [sys.executable, "-c", CLIENT, json.dumps([settings, part_bytes, dies_after])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if dies_after else 0), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
