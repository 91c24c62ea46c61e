"""Unit tests of the client without network access, and a comparison of both clients."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluice
from sluice import worker
from sluice.api import jobs
from sluice.api.jobs import Event
from sluice.errors import BadAnswer, Broken, ExitCode, NotFound, SluiceError, Unreachable
from sluice.transport import sse
from sluice.transport.event_stream import EventStream, TextJoiner
from sluice.transport.request import path_segment, query_string, retry_after_s
from sluice.transport.retry import RetryBudget
from sluice.transport.sse import Message, SseParser
from tests.support.processes.gateway import ROOT


@pytest.mark.parametrize(
    ("text", "part"),
    [("a-b_c.1", "a-b_c.1"), ("../x", "..%2Fx"), ("..", "%2E%2E"), (".", "%2E"), ("ä", "%C3%A4"),
     ("a?b#c", "a%3Fb%23c"), ("", "%20"), ("a\nb", "a%0Ab")],
)  # fmt: skip
def test_path_segment_quotes_ids(text: str, part: str) -> None:
    assert path_segment(text) == part


def test_query_string() -> None:
    assert query_string({"a": None}) == ""
    query = {"status": ["done", "error"], "q": "ä&", "limit": 5, "all": True, "none": None}
    assert query_string(query) == "?status=done&status=error&q=%C3%A4%26&limit=5&all=true"


def test_format_time_requires_a_time_zone() -> None:
    assert jobs.format_time(1760000000000) == "1760000000000"
    assert jobs.format_time("2030-01-31T08:00:00Z") == "2030-01-31T08:00:00Z"
    assert jobs.format_time(datetime(2030, 1, 31, tzinfo=timezone.utc)).endswith("+00:00")
    with pytest.raises(ValueError, match="time zone"):
        jobs.format_time(datetime(2030, 1, 31))


def test_payload_that_is_not_json_is_rejected() -> None:
    with pytest.raises(ValueError):
        jobs.submit("chat", {"x": float("nan")})
    with pytest.raises(TypeError):
        jobs.submit("chat", {"x": object()})


@pytest.mark.parametrize("key", ["", "ä", "a\nb", "x" * 256])
def test_invalid_idempotency_key_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        jobs.submit("chat", {}, idempotency_key=key)


def test_retry_after_s() -> None:
    assert retry_after_s({"retry-after": "7"}) == 7
    assert retry_after_s({"retry-after": "7", "retry-after-ms": "1500"}) == 1.5
    for value in ("", "soon", "-3", "Wed, 21 Oct 2026 07:28:00 GMT", "٣"):
        assert retry_after_s({"retry-after": value}) is None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_retry_budget_by_time() -> None:
    clock = Clock()
    budget = RetryBudget(total_s=10, clock=clock)
    for _ in range(50):
        assert budget.pause_s(Unreachable("away")) is not None
    clock.now = 11
    assert budget.pause_s(Unreachable("away")) is None


def test_reconnection_pauses_grow_without_events() -> None:
    stream = EventStream("/x", reconnect_for_s=10)
    pauses = []
    for _ in range(12):
        assert not stream.accept(Message("", "hello", "{}"))
        pauses.append(stream.pause_s(Broken("dropped"), 0.1))
    assert pauses[-1] > 2
    stream.accept(Message("1-0", "queued", "{}"))
    assert stream.pause_s(Broken("dropped"), None) < 1


def test_lost_stream_fails_after_the_time_limit() -> None:
    clock, messages = Clock(), []
    stream = EventStream("/x", reconnect_for_s=10, clock=clock, notify=messages.append)
    stream.pause_s(Broken("dropped"), None)
    stream.pause_s(Unreachable("away"), None)
    clock.now = 11
    with pytest.raises(Unreachable):
        stream.pause_s(Unreachable("away"), None)
    assert messages == ["dropped; reconnecting"]
    with pytest.raises(NotFound):
        stream.pause_s(NotFound("no", 404), None)


def message(text: str, **more: object) -> Event:
    return Event("", "message", 0, "", {"delta": text, **more})


def test_text_is_that_of_the_last_round() -> None:
    joiner = TextJoiner()
    joiner.add(message("old", attempt=1))
    joiner.add(Event("", "running", 0, "", {"attempt": 2}))
    joiner.add(message("tool", attempt=2))
    joiner.add(message("ne", attempt=2, round=2))
    joiner.add(message("w", attempt=2, round=2))
    joiner.add(Event("", "reasoning", 0, "", {"delta": "hm"}))
    assert joiner.text == "new"


# -- both clients -------------------------------------------------------------------------


def test_blocking_client_is_generated_from_the_asyncio_client() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_sync_client.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [sluice, worker], ids=lambda module: module.__name__)
def test_every_public_name_is_importable(module: Any) -> None:
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="Nonsense"):
        module.Nonsense  # noqa: B018


def test_every_error_is_a_sluice_error() -> None:
    from sluice import errors

    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    defined = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len(defined) > 12
    assert all(issubclass(kind, SluiceError) for kind in defined if kind is not ExitCode)


COMMAND = """
from sluice.cli import main
sys.argv = ["sluice", "{}"]
try:
    main()
except SystemExit:
    pass
"""
HEAVY = "asyncio httpx2 pydantic logging redis fastapi"
SERVER_SIDE = "worker common gateway ops redis pydantic"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import sluice", f"{HEAVY} {SERVER_SIDE} http.client dataclasses typing"),
        ("import sluice.worker", f"{SERVER_SIDE} fastapi asyncio"),
        ("from sluice import Sluice; Sluice('http://x')", HEAVY),
        ("from sluice import AsyncSluice; AsyncSluice('http://x')", "httpx2"),
        (COMMAND.format("--help"), SERVER_SIDE),
        (COMMAND.format("--version"), SERVER_SIDE),
    ],
)
def test_heavy_modules_are_imported_late(code: str, heavy: str) -> None:
    program = f"import sys\n{code}\nprint(sorted(set({heavy.split()}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("package", ["aio", "api", "sync", "transport"])
def test_client_imports_only_the_standard_library(package: str) -> None:
    modules = list((ROOT / "sluice" / package).glob("*.py"))
    assert modules
    for path in modules:
        is_async_transport = (package, path.name) == ("transport", "aio.py")
        known = {*sys.stdlib_module_names, "sluice", *({"httpx2"} if is_async_transport else ())}
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= known, path


# -- server-sent events --------------------------------------------------------------------


STREAM = (
    b": hb 1\n\nretry: 1500\nevent: hello\ndata: {}\n\n"
    b"id: 1-0\r\nevent: message\r\ndata: \xc3\xa4\r\ndata:  two\r\n\r\n"
    b"data\n\nunknown: x\nid\nevent: done\ndata: \xff\n\n"
    b"id: 9-0\nevent: unfinished\ndata: lost\n"
)
MESSAGES = [
    Message("", "hello", "{}"),
    Message("1-0", "message", "ä\n two"),
    Message("", "message", ""),
    Message("", "done", "\ufffd"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_sse_chunk_boundaries_do_not_matter(cuts: list[int]) -> None:
    parser, found, at = SseParser(), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += parser.feed(STREAM[at:cut])
        at = cut
    assert found == MESSAGES
    assert parser.retry_s == 1.5


@given(st.binary(max_size=300), st.integers(1, 50))
def test_sse_parser_survives_noise(noise: bytes, size: int) -> None:
    parser = SseParser()
    found = [m for at in range(0, len(noise), size) for m in parser.feed(noise[at : at + size])]
    parser.feed(b"\n\n")
    assert parser.feed(b"id: 1\nevent: e\ndata: d\n\n") == [Message("1", "e", "d")]
    assert all(isinstance(message, Message) for message in found)


def test_heartbeats_do_not_count_as_event_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    for _ in range(100):
        assert parser.feed(b": hb 1760000000000\n\n") == []
        assert len(parser.feed(b"event: e\ndata: d\n\n")) == 1


@pytest.mark.parametrize("piece", [b"x" * 60, b"data: y\n" * 6])
def test_event_size_is_limited(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    assert parser.feed(piece) == []
    with pytest.raises(BadAnswer):
        parser.feed(piece * 2)


@pytest.mark.parametrize("value", ["-1", "1e9", "", "ten", "٣"])
def test_invalid_retry_field_is_ignored(value: str) -> None:
    parser = SseParser()
    parser.feed(f"retry: {value}\n\n".encode())
    assert parser.retry_s is None


# -- sluice.worker: the API for authors of handlers, tools and workflows -----------------------


EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def test_type_checkers_see_the_runtime_names() -> None:
    tree = ast.parse(Path(str(worker.__file__)).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    homes = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert homes == worker._MODULES
    assert sorted(homes) == worker.__all__
    for name, module in homes.items():
        assert getattr(import_module(str(module)), name) is getattr(worker, name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_only_the_public_api(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.module.split(".")[0] not in ("worker", "common", "gateway", "ops")
            if node.module.split(".")[0] == "sluice":
                assert node.module in ("sluice", "sluice.worker")
