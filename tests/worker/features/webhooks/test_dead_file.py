"""The dead-letter file: whole lines, with concurrent writers and after failures."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from worker.features.webhooks import dead_letter_file
from worker.features.webhooks.dead_letter_file import ROTATED_FILES, DeadLetterFile


def write_many(path: str, name: str, count: int, most_bytes: int) -> None:
    file = DeadLetterFile(path, most_bytes)
    for number in range(count):
        assert file.append(json.dumps({"name": name, "number": number, "pad": "x" * 500}).encode())


def all_lines(directory: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for path in sorted(directory.iterdir())
        for line in path.read_text().splitlines()
    ]


def test_appending_creates_directory_and_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "letters.jsonl"
    assert DeadLetterFile(path).append(b'{"x":1}')
    assert DeadLetterFile(path).append(b'{"x":2}\n')
    assert path.read_bytes() == b'{"x":1}\n{"x":2}\n'
    assert path.stat().st_mode & 0o077 == 0  # payloads are private


def test_concurrent_writers_and_rotation_keep_lines_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "letters.jsonl"
    # The kept files can hold all lines.
    writers = [
        context.Process(target=write_many, args=(str(path), f"w{each}", 60, 40_000))
        for each in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = all_lines(tmp_path)
    assert len(found) == 180
    assert len({(line["name"], line["number"]) for line in found}) == 180
    assert (tmp_path / "letters.jsonl.1").exists()


def test_the_oldest_files_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    for number in range(ROTATED_FILES + 5):
        assert DeadLetterFile(path, most_bytes=1).append(b"%d" % number)
    assert path.read_text() == f"{ROTATED_FILES + 4}\n"
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == sorted(
        ["letters.jsonl", *(f"letters.jsonl.{n}" for n in range(1, ROTATED_FILES + 1))]
    )
    assert (tmp_path / "letters.jsonl.1").read_text() == f"{ROTATED_FILES + 3}\n"


def test_a_torn_line_does_not_affect_the_next(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_bytes(b'{"x":1}\n{"x":')
    assert DeadLetterFile(path).append(b'{"x":3}')
    assert path.read_bytes().splitlines() == [b'{"x":1}', b'{"x":', b'{"x":3}']


def test_a_write_failure_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "letters.jsonl", tmp_path):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert not DeadLetterFile(path).append(b"{}")
        assert "WORKFLOW_WEBHOOK_DLQ_PATH" in caplog.text


def test_a_full_disk_leaves_no_partial_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "letters.jsonl"
    assert DeadLetterFile(path).append(b"first")
    real = os.write
    monkeypatch.setattr(dead_letter_file.os, "write", lambda file, data: real(file, data[:2]))
    assert not DeadLetterFile(path).append(b"second")
    monkeypatch.undo()
    assert DeadLetterFile(path).append(b"third")
    assert path.read_bytes() == b"first\nthird\n"
