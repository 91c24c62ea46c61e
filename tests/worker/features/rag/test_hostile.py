"""Malicious and damaged files are reported, and the worker continues."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.worker.features.rag.kit import RagMaker
from tests.worker.features.rag.pdfs import assemble, bomb, encrypted, pdf
from worker.execution.process_pool import confine
from worker.features.rag.errors import UnreadableDocument
from worker.features.rag.parsing import child as reading_child
from worker.features.rag.parsing import reader
from worker.features.rag.parsing.child import HTML, PDF
from worker.features.rag.parsing.reader import DocumentReader, SandboxedParser

PDF_TYPE = "application/pdf"


async def test_a_pdf() -> None:
    raw = pdf("The first page.", "The second one.", title="My paper")
    found = await DocumentReader().read(raw, PDF_TYPE)
    assert found == ("The first page.\n\nThe second one.", "My paper", PDF_TYPE)
    assert (await DocumentReader().read(pdf("Only this.", compress=True))).title == "Only this."


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not readable as PDF"),
        (b"%PDF-1.7 and then nothing", "not readable as PDF"),
        (pdf("cut off")[:200], "not readable as PDF|no text|damaged"),
        (os.urandom(5000), "not readable as PDF"),
        (encrypted("hidden", "secret"), "encrypted"),
        (assemble([b""]), "no text"),
        (assemble([b"BT (" * 5000], compress=True), "no text|damaged"),
        (bomb(200), "no text|damaged|memory"),
        (b"%PDF-1.4\n" + b"1 0 obj\n[" * 50_000, "not readable as PDF|nested|memory|time"),
    ],
    ids=["empty", "head", "cut", "noise", "encrypted", "blank", "odd", "bomb", "nested"],
)
async def test_pdfs_that_cannot_be_read(raw: bytes, words: str) -> None:
    with pytest.raises(UnreadableDocument, match=words):
        await DocumentReader().read(raw, PDF_TYPE)


async def test_an_encrypted_pdf_without_a_password_opens() -> None:
    assert (
        await DocumentReader().read(encrypted("open to all", ""), PDF_TYPE)
    ).text == "open to all"


async def test_a_document_that_takes_too_long_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By CPU time within the process, and by wall-clock time from outside."""
    monkeypatch.setattr(confine, "_BOOT", "import sys; sys.stdin.buffer.read()\nwhile 1: pass")
    monkeypatch.setattr(reader, "WALL_S", 0.5)
    started = time.monotonic()
    with pytest.raises(UnreadableDocument, match="too much time"):
        await SandboxedParser().extract(PDF, b"x", 10)
    assert time.monotonic() - started < 10


def limited(cpu_s: int = 1) -> str:
    return (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from worker.features.rag.parsing import child\n"
        f"child.CPU_S = {cpu_s}\n"
        "child._limit()\n"
    )


@pytest.mark.parametrize(
    "evil",
    ["while 1: pass", "x = b'x' * (1 << 33)", "open('f', 'wb', 0).write(b'x'); print('{{}}')"],
    ids=["time", "memory", "files"],
)
async def test_the_process_is_limited_from_within(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, evil: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(confine, "_BOOT", limited() + evil)
    with pytest.raises(UnreadableDocument, match="too much"):
        await SandboxedParser().extract(HTML, b"x", 10)
    assert [path.stat().st_size for path in tmp_path.iterdir()] in ([], [0])


async def test_a_cancellation_kills_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    boot = (
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()) + '\\n')\n"
        "time.sleep(99)"
    )
    monkeypatch.setattr(confine, "_BOOT", boot)
    apart = SandboxedParser()
    reading = asyncio.create_task(apart.extract(HTML, b"x", 10))
    pid = int(await eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    reading.cancel()
    await asyncio.wait({reading})
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
    # The next document can be read.
    monkeypatch.undo()
    assert (await apart.extract(HTML, b"<p>x", 10)).text == "x"


async def test_the_process_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host")
    monkeypatch.setattr(
        confine,
        "_BOOT",
        "import json, os; print(json.dumps({{'fault': str(dict(os.environ))}}))",
    )
    with pytest.raises(UnreadableDocument) as caught:
        await SandboxedParser().extract(HTML, b"x", 10)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("piece", ["<!", "<a ", "<", "&", "<div>"])
async def test_html_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch, piece: str) -> None:
    """Some parsers are quadratic for such input; they are killed."""
    monkeypatch.setattr(reader, "WALL_S", 2.0)
    started = time.monotonic()
    with contextlib.suppress(UnreadableDocument):
        await DocumentReader().read("x" + piece * 300_000, "text/html")
    assert time.monotonic() - started < 15


def test_the_process_times_out_long_before_the_job() -> None:
    assert reading_child.CPU_S < reading_child.WALL_S <= 60


async def test_a_broken_document_fails_only_its_job(
    fake_rag: RagMaker,
) -> None:
    worker = await fake_rag()
    payload = {"op": "ingest", "upload": True, "document": {"media_type": PDF_TYPE}}
    ended = await worker.end(await worker.submit(payload, upload=b"%PDF-1.4 nonsense"))
    assert ended.kind == "unreadable_document"
    assert ended.value["attempt"] == 1
    assert await worker.client.keys("rag*") == []  # not even the upload
    good = await worker.end(await worker.submit(payload, upload=pdf("Good news.")))
    assert good.result["chunks"] == 1
    assert (await worker.ask("news"))["hits"][0]["quote"] == "Good news."
