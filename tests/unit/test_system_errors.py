"""What a process's surroundings do to it: streams without a reader, folders that take nothing, limits, odd letters."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from comt_cli.errors import StorageError, UserError, of_surroundings
from comt_cli.files import check_writable
from comt_cli.streams import Lasting


def test_a_full_disk_of_messages_ends_nothing():
    with Path("/dev/full").open("w") as stream:
        print("lost", file=Lasting(stream), flush=True)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("new/folder", None),
        (".", None),
        ("file/below", "Not a directory"),
        ("dead/x", "No such file"),
        ("a" * 300, "long"),
    ],
)
def test_whether_a_folder_takes_files_is_tried_and_leaves_nothing(place, reason, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dead").symlink_to("nowhere")
    if reason is None:
        check_writable(tmp_path / place, "--here")
    else:
        with pytest.raises(UserError, match=rf"--here: .* cannot be written: .*{reason}"):
            check_writable(tmp_path / place, "--here")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dead", "file"]


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), UserError, "cannot use a/b: Permission denied"),
        (OSError(errno.ENOSPC, "No space left", b"a/b"), StorageError, "cannot use a/b: No space left"),
        (OSError(errno.EMFILE, "Too many open files"), StorageError, "ulimit -n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "a"), StorageError, "too little memory"),
    ],
)
def test_what_the_system_refuses_is_told(error, kind, says):
    told = of_surroundings(error)
    assert type(told) is kind
    assert says in str(told)


def test_defects_stay_defects():
    assert of_surroundings(OSError("no number")) is None
    assert of_surroundings(ImportError("cannot import name 'x'"), []) is None
    with pytest.raises(UnicodeEncodeError) as odd:
        "\udcff".encode()
    for error in (odd.value, TypeError("List elements must be str or bytes")):  # SentencePiece's
        assert of_surroundings(error, ["fine"]) is None
        assert "argument 'a\\udcff' is not UTF-8" in str(of_surroundings(error, ["fine", "a\udcff"]))
    assert "too little memory" in str(
        of_surroundings(ImportError("x.so: failed to map segment from shared object"), [])
    )
