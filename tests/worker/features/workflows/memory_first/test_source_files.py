"""Files below a root: links, races and special files never lead outside."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from worker.features.workflows.memory_first.sources import files as source_files
from worker.features.workflows.memory_first.sources.files import SourceRoot, UnusableFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "root"
    (directory / "a" / "b").mkdir(parents=True)
    (directory / "a" / "one.md").write_text("one")
    (directory / "a" / "b" / "two.txt").write_text("two")
    (directory / "top.html").write_text("<p>top")
    (directory / "program.exe").write_text("no")
    (directory / ".secret.txt").write_text("secret")
    (directory / ".git").mkdir()
    (directory / ".git" / "config.txt").write_text("secret")
    (tmp_path / "outside.txt").write_text("outside")
    return directory


def read(root: Path, path: str) -> bytes:
    files = SourceRoot(str(root))
    return files.read(files.relative(path))


def assert_refused(root: Path, *paths: str, match: str | None = None) -> None:
    for path in paths:
        with pytest.raises(UnusableFile, match=match):
            read(root, path)


def test_files_are_read_by_their_path_from_the_root_or_in_full(root: Path) -> None:
    assert read(root, "a/one.md") == b"one"
    assert read(root, str(root / "a" / "one.md")) == b"one"
    assert read(root, "a/../top.html") == b"<p>top"


def test_missing_outside_and_hidden_files_are_refused(root: Path) -> None:
    outside = ("../outside.txt", "/etc/passwd", "a/../../outside.txt")
    assert_refused(root, *outside, "a/\0", "\ud800", "missing.md")
    hidden = (".secret.txt", ".git/config.txt", "a/../.secret.txt")
    assert_refused(root, *hidden, match="hidden")


def test_a_link_may_stay_below_the_root_and_not_leave_it(root: Path) -> None:
    (root / "inner.md").symlink_to(root / "a" / "one.md")
    (root / "outer.txt").symlink_to(root.parent / "outside.txt")
    (root / "up").symlink_to(root.parent)
    (root / "hidden.txt").symlink_to(root / ".secret.txt")
    assert read(root, "inner.md") == b"one"
    assert_refused(root, "outer.txt", "up/outside.txt", "hidden.txt")


def test_pipes_sockets_and_directories_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(root)  # the path of a socket must be short
        try:
            listening.bind("s.txt")
        finally:
            os.chdir(here)
        assert_refused(root, "pipe.txt", "s.txt", "a")
        assert SourceRoot(str(root)).files("", "*.txt") == []


def test_a_file_that_is_too_large_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MOST_FILE_BYTES", 2)
    assert_refused(root, "a/one.md", match="more than 2 bytes")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("", ["a/b/two.txt", "a/one.md", "top.html"]),
     ("**", ["a/b/two.txt", "a/one.md", "top.html"]), ("**/*.md", ["a/one.md"]),
     ("*", ["top.html"]), ("a/*", ["a/one.md"]), ("a/**", ["a/b/two.txt", "a/one.md"]),
     ("**/b/**/*.txt", ["a/b/two.txt"]), ("[xyz]*", []), ("*" * 200 + "q", [])],
)  # fmt: skip
def test_a_directory_gives_matching_files(root: Path, pattern: str, expected: list[str]) -> None:
    (root / "loop").symlink_to(root)
    assert SourceRoot(str(root)).files("", pattern) == expected


def test_a_path_replaced_by_a_link_is_not_followed(root: Path) -> None:
    files = SourceRoot(str(root))
    file, below = files.relative("a/one.md"), files.relative("a/b/two.txt")
    (root / "a" / "one.md").unlink()
    (root / "a" / "one.md").symlink_to(root.parent / "outside.txt")
    (root.parent / "b").mkdir()
    (root.parent / "b" / "two.txt").write_text("outside")
    (root / "a" / "b").rename(root / "a" / "c")
    (root / "a" / "b").symlink_to(root.parent / "b")
    for path in (file, below):
        with pytest.raises(UnusableFile):
            files.read(path)


def test_a_directory_with_too_many_entries_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SourceRoot(str(root)).files("a", "") == ["a/b/two.txt", "a/one.md"]
    (root / os.fsdecode(b"bad\xff.txt")).write_text("x")  # not Unicode
    assert SourceRoot(str(root)).files("", "*.txt") == []
    with pytest.raises(UnusableFile, match="not a directory"):
        SourceRoot(str(root)).files("top.html", "")
    with pytest.raises(UnusableFile, match="WORKFLOW_SOURCES_ROOT"):
        SourceRoot("").relative("etc/passwd")
    monkeypatch.setattr(source_files, "MOST_ENTRIES", 3)
    with pytest.raises(UnusableFile, match="more than 3 entries"):
        SourceRoot(str(root)).files("", "")


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    read(root, "a/b/two.txt")
    SourceRoot(str(root)).files("", "")
    assert_refused(root, "a/b/none.txt")
    assert len(os.listdir("/proc/self/fd")) == before
