"""The step `sources`, and files below a root: links, races and special files stay inside."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sluice.common.features.workflows.memory_first import DEFINITION, SOURCES
from sluice.common.json_schema import Schema
from sluice.worker.features.workflows.memory_first.sources import files as source_files
from sluice.worker.features.workflows.memory_first.sources.decoding import (
    csv_to_text,
    describe_text,
    detect_source_language,
    guess_charset,
    json_to_text,
)
from sluice.worker.features.workflows.memory_first.sources.files import SourceRoot, UnusableFile
from sluice.worker.features.workflows.memory_first.steps import sources as sources_step
from tests.support.files.pdfs import pdf
from tests.support.worker.memory_first import job_with, text, text_worker
from tests.support.worker.workflows import FlowMaker, WorkflowWorker

pytestmark = pytest.mark.fakeredis_only


def test_json_and_csv_become_lines() -> None:
    raw = json.dumps({"a": {"b": ["x", "two words"]}, "n": 5, "none": None})
    assert json_to_text(raw.encode()) == "b: x\ntwo words\nn: 5"
    with pytest.raises(Exception, match="invalid JSON"):
        json_to_text(b"[" * 100_000)
    assert csv_to_text(b'a,b\n"x, y","line\nbreak"\n,\n') == "a | b\nx, y | line break"
    assert csv_to_text(b"a\tb\n1\t2") == "a | b\n1 | 2"


def file(path: str) -> dict[str, str]:
    """A source that is a file below the root."""
    return {"type": "file", "path": path}


async def failed(worker: WorkflowWorker, sources: list[Any], **options: Any) -> list[Any]:
    """The errors of a failed step."""
    job_id = await worker.create(DEFINITION)
    record = await worker.run(job_id, SOURCES, {"sources": sources, **options})
    assert record.status.value == "failed", record
    return list(record.errors)


async def test_files_of_all_types_are_read(flows: FlowMaker, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A title\n\nSome words.")
    (tmp_path / "b.txt").write_bytes("Ein Café für die Gäste und das Haus.".encode("cp1252"))
    (tmp_path / "c.html").write_text("<title>Page</title><p>Hello there, world.")
    (tmp_path / "d.json").write_text('{"name": "x", "about": "Some prose here.", "n": [1, 2]}')
    (tmp_path / "e.csv").write_text("name;city\nAnna;Ulm\n")
    (tmp_path / "f.pdf").write_bytes(pdf("One page of text", title="Paper"))
    (tmp_path / "g.bin").write_text("no")
    worker = await text_worker(flows, tmp_path)
    job_id = await job_with(worker, [{"type": "dir", "path": "."}])
    found = await worker.payloads(job_id, SOURCES)
    assert [(each["path"], each["title"], each["lang"]) for each in found] == [
        ("a.md", "A title", "en"), ("b.txt", "b.txt", "de"), ("c.html", "Page", "en"),
        ("d.json", "d.json", "en"), ("e.csv", "e.csv", "en"), ("f.pdf", "Paper", "en"),
    ]  # fmt: skip
    assert all(each["bytes"] == (tmp_path / each["path"]).stat().st_size for each in found)
    assert found[1]["chars"] == len("Ein Café für die Gäste und das Haus.")
    # Repeated files and duplicate texts.
    (tmp_path / "a.txt").write_text("the same words")
    (tmp_path / "b.txt").write_text("the same words")
    directory = {"type": "dir", "path": "", "glob": "*.txt"}
    sources = [text("the same words"), file("a.txt"), directory]
    job_id = await job_with(worker, sources)
    found = await worker.payloads(job_id, SOURCES)
    copies = [(each["path"], each["duplicate_of"]) for each in found]
    assert copies == [(None, None), ("a.txt", "s_001"), ("b.txt", "s_001")]


async def test_an_unreadable_source_fails_the_step_unless_allowed(
    flows: FlowMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.txt").write_bytes(b"a\0b")
    worker = await text_worker(flows, tmp_path)
    sources = [text("good words"), file("bad.txt"), file("../etc/passwd")]
    [error] = await failed(worker, sources, max_source_failures=1)
    assert error["code"] == "source_failed"
    assert "2 of 3 sources" in error["message"]
    assert "bad.txt: character 1 is NUL" in error["message"]
    job_id = await job_with(worker, sources, max_source_failures=2)
    record = await worker.step(job_id, SOURCES)
    assert {each["code"] for each in record.errors} == {"source_failed"}
    assert [each["source"] for each in record.errors] == ["../etc/passwd", "bad.txt"]
    assert len(await worker.payloads(job_id, SOURCES)) == 1
    # Failures beyond the limit are counted.
    monkeypatch.setattr(sources_step, "MOST_ERRORS_BYTES", 10_000)
    missing = [file(f"{number:03d}{'é' * 250}.txt") for number in range(40)]
    job_id = await job_with(worker, [text("good words"), *missing], max_source_failures=40)
    *reported, last = (await worker.step(job_id, SOURCES)).errors
    assert [each["source"][:3] for each in reported] == [
        f"{number:03d}" for number in range(len(reported))
    ]
    assert last["message"].startswith(f"{40 - len(reported)} more cannot be read")
    assert len(await worker.payloads(job_id, SOURCES)) == 1
    # So is a file that cannot be parsed.
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nonsense")
    sources = [file("broken.pdf"), text("good words")]
    job_id = await job_with(worker, sources, max_source_failures=1)
    assert [each["title"] for each in await worker.payloads(job_id, SOURCES)] == ["good words"]


async def test_too_many_large_and_invalid_sources_are_refused(
    flows: FlowMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"text number {number}")
    worker = await text_worker(flows, tmp_path)
    monkeypatch.setattr(sources_step, "MOST_SOURCES", 3)
    [error] = await failed(worker, [{"type": "dir", "path": "."}])
    assert error["code"] == "payload_too_large"
    assert "4 sources, 3 at most" in error["message"]
    monkeypatch.setattr(sources_step, "MOST_INLINE_BYTES", 10)
    [error] = await failed(worker, [text("longer than ten bytes")])
    assert error["code"] == "payload_too_large"
    monkeypatch.setattr(sources_step, "MOST_TEXT_BYTES", 20)
    [error] = await failed(worker, [file("0.txt"), file("1.txt")])
    assert error["code"] == "payload_too_large"
    for wrong in ({"type": "url", "path": "x"}, {"type": "file"}, "words"):
        [error] = await failed(worker, [wrong])
        assert error["code"] == "validation_error"


def test_the_schema_of_the_options_matches() -> None:
    directory = {"type": "dir", "path": ".", "glob": "**"}
    summary = {"sentences": 3, "use_model": False, "model_timeout_s": 1.5}
    review = {"decisions": [{"id": 1, "action": "approve"}], "finalize": True}
    eaten = {"decisions": [{"id": "p_001", "action": "eat"}]}
    bad_sources: list[Any] = [[{"type": "url"}], [{"type": "file"}], [text("x")] * 201]
    options: dict[str, tuple[list[Any], list[Any]]] = {
        "sources": (
            [{}, {"sources": [text("x"), directory]}],
            [{"max_source_failures": -1}, *({"sources": each} for each in bad_sources)],
        ),
        "index_extract": ([{"max_terms": 2000}], [{"max_terms": 2001}]),
        "summarize": ([summary], [{"sentences": 0}]),
        "proposals": (
            [{"limit": 0, "min_confidence": 1, "organize": True}],
            [{"limit": 2001}, {"min_confidence": 1.5}],
        ),
        "review": ([review], [eaten]),
        "apply": ([{"dry_run": True}], [{"dry_run": 1}]),
        "analytics": ([{}], [{"more": 1}]),
    }
    for step in DEFINITION.steps:
        schema, (good, bad) = Schema(step.options_schema or {}), options[step.name]
        assert all(not schema.describe_violations(each) for each in good)
        assert all(schema.describe_violations(each) for each in [*bad, {"unknown": 1}])


def test_the_encoding_passed_to_the_reader() -> None:
    assert guess_charset("é".encode(), "text/plain") == ""
    assert guess_charset("é".encode("latin-1"), "text/plain") == "windows-1252"
    assert guess_charset("é".encode("utf-16"), "text/plain") == ""
    assert guess_charset(b"x", "text/plain", "koi8-r") == "koi8-r"
    assert guess_charset(b'<meta charset="iso-8859-2">\xe9', "text/html") == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [("死信队列用于存放无法处理的消息", "zh"), ("これはキューです。メッセージ", "ja"),
     ("한국어 텍스트", "ko"), ("الدفع الإلكتروني مهم", "ar"), ("שלום עולם", "he"),
     ("это не то что вы и я", "ru"), ("der Hund und die Katze sind nicht da", "de"), ("", "en"),
     ("12345", "en")],
)  # fmt: skip
def test_languages(words: str, expected: str) -> None:
    assert detect_source_language(words) == expected
    assert describe_text(words).lang == expected


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
