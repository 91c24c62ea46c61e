"""Log lines: their context, their format, throttling, and masked secrets."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.common.observability import log_throttle, logs
from sluice.common.observability.log_throttle import ThrottlingHandler
from sluice.common.observability.logs import JsonFormatter, MessageFormatter, TextFormatter, mask
from sluice.common.settings.gateway import GatewaySettings


class Lines(logging.Handler):
    """Collects formatted lines."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.reported = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if "more like this" in record.getMessage():
            self.reported.set()

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level


def guarded(
    lines: Lines, most: int = 3, window_s: float = 60.0
) -> tuple[logging.Logger, ThrottlingHandler]:
    log = logging.Logger("sluice.worker.queue.reader")
    guard = ThrottlingHandler(lines, most, window_s)
    log.addHandler(guard)
    return log, guard


def test_similar_lines_are_counted_instead_of_written(lines: Lines) -> None:
    log, guard = guarded(lines)
    for number in range(10):
        log.warning("redis: fault %d", number)
        log.warning("other %d", number)
    log.error("once")
    assert lines.texts == [
        *("redis: fault 0", "other 0", "redis: fault 1", "other 1", "redis: fault 2", "other 2"),
        "once",
    ]
    guard.report_suppressed()
    assert lines.texts[7:] == [
        "redis: fault 0 … 7 more like this in 60 s",
        "other 0 … 7 more like this in 60 s",
    ]
    assert lines.records[-1].levelno == logging.WARNING
    log.warning("redis: fault %d", 10)
    assert lines.texts[-1] == "redis: fault 10"


def test_suppressed_lines_are_reported_after_the_window(lines: Lines) -> None:
    log, _ = guarded(lines, most=1, window_s=0.05)
    for _ in range(3):
        log.warning("alike")
    assert lines.reported.wait(10)
    assert lines.texts == ["alike", "alike … 2 more like this in 0 s"]


@pytest.mark.parametrize("name", ["sluice.gateway.access", "sluice.common.access.audit_log"])
def test_access_and_audit_log_are_not_throttled(lines: Lines, name: str) -> None:
    """Frequent actions must not be able to hide a later one."""
    guard = ThrottlingHandler(lines, 1)
    for number in range(5):
        guard.handle(logging.LogRecord(name, 20, "", 1, "line %s", (number,), None))
    assert lines.texts == [f"line {number}" for number in range(5)]


def configure(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> io.StringIO:
    """Configure logging; returns what is written to stderr."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    logs.configure(GatewaySettings(**settings))
    return stderr


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("level", "written", "hidden"),
    [
        ("error", "sluice.common.access.audit_log", "common.other"),  # the audit log at every level
        ("debug", "sluice.gateway.events.hub", "sse_starlette.sse"),  # it would log payloads
    ],
)
def test_some_loggers_have_their_own_level(
    level: str, written: str, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = configure(monkeypatch, log_level=level, log_format="text")
    for name in (written, hidden):
        severity = logging.INFO if level == "error" else logging.DEBUG
        logging.getLogger(name).log(severity, "line of %s", name)
    assert f"line of {written}" in stderr.getvalue()
    assert f"line of {hidden}" not in stderr.getvalue()


def test_the_number_of_kinds_is_limited(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_throttle, "MOST_KINDS", 5)
    log, guard = guarded(lines, most=2)
    for number in range(100):
        log.warning(f"of its own kind {number}")
    assert len(guard._seen) == 6
    guard.close()
    assert lines.texts[-1] == "of its own kind 5 … 93 more like this in 60 s"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_have_their_context(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = configure(monkeypatch, log_format=form)
    logging.getLogger("x").info("plain")
    values = {logs.job_id: "j1", logs.request_id: "r1", logs.trace_id: "0af7"}
    tokens = [(variable, variable.set(value)) for variable, value in values.items()]
    try:
        logging.getLogger("x").info("hello")
        logging.getLogger("x").info("other", extra=logs.job_extra("j2"))
    finally:
        for variable, token in tokens:
            variable.reset(token)
    plain, first, second = stderr.getvalue().splitlines()
    if form == "json":
        line = json.loads(first)
        assert line.pop("time")
        own = {"level": "info", "logger": "x", "message": "hello"}
        assert line == {**own, "job_id": "j1", "request_id": "r1", "trace_id": "0af7"}
        assert set(json.loads(plain)) == {"time", *own}
        assert json.loads(second)["job_id"] == "j2"
    else:
        assert plain.endswith(" INFO x: plain")
        assert first.endswith(" INFO x: hello job_id=j1 request_id=r1 trace_id=0af7")
        assert second.endswith(" INFO x: other job_id=j2 request_id=r1 trace_id=0af7")


@pytest.mark.parametrize("odd", ["two\nlines", "\x00\x1b[31m", "\ud800", "ü"])
def test_a_json_line_is_always_one_line(odd: str) -> None:
    error = (ValueError, ValueError(odd), None)
    record = logging.LogRecord("sluice", logging.INFO, __file__, 1, odd, (), error)
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError" in json.loads(line)["exception"]


FORGED = (
    "x\n2026-01-01 00:00:00,000 INFO sluice.common.access.audit_log: audit log: local key.create"
)


def test_a_value_cannot_forge_a_text_line() -> None:
    log_format = TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for odd in (FORGED, "x\r", "\x1b[2J", "\x85", "\u2028", "\u202e", "\ud800", "x tenant=other"):
        record = logging.LogRecord("a", logging.INFO, __file__, 1, "lost: %s", (odd,), None)
        record.job_id = odd
        line = log_format.format(record)
        assert line.isprintable(), line
        assert line.endswith(f"job_id={odd!r}")
    plain = logging.LogRecord("a", logging.INFO, __file__, 1, "größe 日本 🎬", (), None)
    assert log_format.format(plain).endswith(" INFO a: größe 日本 🎬")


def test_the_message_of_an_exception_cannot_forge_a_text_line() -> None:
    try:
        raise ValueError(FORGED + "\x1b[2J")
    except ValueError:
        fault = sys.exc_info()
    record = logging.LogRecord("a", logging.ERROR, __file__, 1, "failed", (), fault)
    first, second, *others = TextFormatter("%(name)s %(message)s").format(record).splitlines()
    assert (first, second) == ("a failed", "Traceback (most recent call last):")
    assert others
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert FORGED.splitlines()[1] in others[-1]


def test_configure_writes_to_stderr(root: logging.Logger) -> None:
    logs.configure(GatewaySettings(log_format="json", log_level="warning"))
    [guard] = root.handlers
    assert isinstance(guard, ThrottlingHandler)
    assert isinstance(guard.target.formatter, logs.JsonFormatter)
    assert root.level == logging.WARNING
    assert getattr(guard.target, "stream", None) is sys.stderr


@pytest.mark.usefixtures("root")
def test_auto_is_text_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    stderr = configure(monkeypatch)
    logging.getLogger("x").warning("hello")
    assert stderr.getvalue().endswith(" WARNING x: hello\n")


def test_a_process_reports_suppressed_lines_at_its_end() -> None:
    program = (
        "import logging\n"
        "from sluice.common.observability import logs; from sluice.common.process import runtime\n"
        "from sluice.common.settings.gateway import GatewaySettings\n"
        "logs.configure(GatewaySettings(log_format='text'))\n"
        "for n in range(25): logging.warning('fault %d', n)\n"
        "runtime.exit_process(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    found = ended.stderr.splitlines()
    assert len(found) == 21
    assert found[-1].endswith("fault 0 … 5 more like this in 10 s")


# -- Secrets are masked in every line; everything else is unchanged -------------------------------


KEY = "sluice_ab12cd34_9fKsPq7ZrT0vWx8yAa1Bb2Cc3Dd4Ee5Ff6Gg7Hh"
SECRET = "9fKsPq7ZrT0vWx8yAa1Bb2Cc3Dd4Ee5Ff6Gg7Hh"


TOKEN = f"rd1~job~6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e~1760000600~k3x9q2ab~{'x-_' * 14}A"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"key {KEY} is unknown", "key sluice_ab12cd34_*** is unknown"),
        (f"Authorization: Bearer {KEY}", "Authorization: ***"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: ***"),
        ("{'Authorization': 'Bearer abcdefgh', 'x': 1}", "{'Authorization': '***', 'x': 1}"),
        ("(b'authorization', b'Bearer abcdefgh')", "(b'authorization', b'***')"),
        ("sent Bearer abcdefghijk to it", "sent Bearer *** to it"),
        ("redis://worker:hunter2@127.0.0.1:6379/0 is away", "redis://worker:***@127.0.0.1:6379/0"
         " is away"),
        ("unix://:hun/ter@2@/run/redis.sock", "unix://:***@/run/redis.sock"),
        ("'rediss://:pw@host' and 'redis://host:6379'", "'rediss://:***@host' and "
         "'redis://host:6379'"),
        ("unix:///run/redis.sock?db=1&password=hun@ter2&x=1 is away",
         "unix:///run/redis.sock?db=1&password=***&x=1 is away"),
        (f"http://host/?key={KEY}&next=redis://me:hunter2@host",
         "http://host/?key=sluice_ab12cd34_***&next=redis://me:***@host"),
        ('authorization: Bearer "abcdefgh"', 'authorization: ***"'),
        (f"GET /v1/jobs/x?token={TOKEN}&y=1", "GET /v1/jobs/x?token=rd1~***&y=1"),
        (f"GET /?token={TOKEN.replace('~', '%7E')} 1", "GET /?token=rd1%7E*** 1"),
        (f"{TOKEN.replace('rd1', 'up1')!r} is", "'up1~***' is"),
    ],
)  # fmt: skip
def test_secrets_are_masked(line: str, shown: str) -> None:
    assert mask(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "redis: Connection refused; reading again in 0.1 s",
        "POST /v1/jobs 202 1.2ms",
        "http://127.0.0.1:8080/v1/jobs",
        "mail me@example.com",
        "the bearer of news",
        "sluice_data_dir is /var/lib/sluice",
    ],
)
def test_other_text_is_unchanged(line: str) -> None:
    assert mask(line) == line


@pytest.mark.parametrize(
    "piece",
    ["://a:", "//b:", "://", "@a://b:", "authorization ", "authorization: '", "bearer ", "rd1~"],
)
def test_a_long_text_is_masked_quickly(piece: str) -> None:
    text = f"://a:{piece * (500_000 // len(piece))}"
    began = time.perf_counter()
    mask(text)
    assert time.perf_counter() - began < 5  # once this took an hour


@pytest.mark.parametrize(
    "formatter",
    [TextFormatter(), JsonFormatter(), MessageFormatter()],
    ids=lambda f: type(f).__name__,
)
def test_tracebacks_are_masked_in_every_format(formatter: logging.Formatter) -> None:
    try:
        raise RuntimeError(f"cannot use {KEY} at redis://me:hunter2@host")
    except RuntimeError:
        fault = sys.exc_info()
    record = logging.LogRecord("a", logging.ERROR, __file__, 1, "with %s", (KEY,), fault)
    line = formatter.format(record)
    assert SECRET not in line
    assert "hunter2" not in line
    assert line.count("sluice_ab12cd34_***") == 2
