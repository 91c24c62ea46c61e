"""Settings and logs: errors name every invalid variable, lines have their context."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from common.errors import SettingsError
from common.observability import logs
from common.observability.log_throttle import ThrottlingHandler
from common.settings.base import CommonSettings, load_settings
from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings

KINDS: list[type[CommonSettings]] = [GatewaySettings, WorkerSettings]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        for name in kind.model_fields:
            monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_described(kind: type[CommonSettings]) -> None:
    for name, field in kind.model_fields.items():
        assert field.description, name
        assert field.description[-1] in ".`", name


@pytest.mark.parametrize("kind", KINDS)
def test_hosts_of_webhooks_are_checked(
    kind: type[CommonSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "127.0.0.1, hooks.lan,10.0.0.0/8")
    load_settings(kind)
    monkeypatch.setenv("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "http://hooks.lan/")
    with pytest.raises(SettingsError, match=r"WORKFLOW_WEBHOOK_ALLOWED_HOSTS.*not a host name"):
        load_settings(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_hold(kind: type[CommonSettings]) -> None:
    settings = load_settings(kind)
    assert settings.redis_url is None
    assert (settings.queue_stream_key, settings.worker_group) == ("jobs:stream", "workers")
    assert settings.keys.queue == "jobs:stream"


def test_the_specified_names_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(GatewaySettings).backpressure_max_backlog == 200
    names = {
        "REDIS_URL": "redis://127.0.0.1:6379/0", "QUEUE_STREAM_KEY": "q", "WORKER_GROUP": "g",
        "CONSUMER": "c", "BLOCK_MS": "5", "COUNT": "6", "MAX_INFLIGHT": "7", "DEFAULT_TTL_S": "8",
    }  # fmt: skip
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(WorkerSettings)
    for name, value in names.items():
        assert str(getattr(settings, name.lower())) == value


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (GatewaySettings, "REDIS_URL", "http://localhost"),
        (GatewaySettings, "PORT", "eighty"),
        (GatewaySettings, "PORT", "65536"),
        (GatewaySettings, "JOB_TTL_S", "0"),
        (GatewaySettings, "JOB_TTL_S", "2592001"),
        (GatewaySettings, "BACKPRESSURE_MAX_BACKLOG", "0"),
        (GatewaySettings, "MAX_PAYLOAD_BYTES", "-1"),
        (GatewaySettings, "IDEMPOTENCY_TTL_S", "0"),
        (GatewaySettings, "SSE_HEARTBEAT_S", "0"),
        (GatewaySettings, "MAX_WAIT_S", "601"),
        (WorkerSettings, "BLOCK_MS", "0"),
        (WorkerSettings, "COUNT", "0"),
        (WorkerSettings, "MAX_INFLIGHT", "0"),
        (WorkerSettings, "DEFAULT_TTL_S", "x"),
        (WorkerSettings, "LEASE_MS", "1"),
        (WorkerSettings, "SHUTDOWN_GRACE_S", "-1"),
        (WorkerSettings, "LOG_FORMAT", "xml"),
        (WorkerSettings, "EMBEDDED_FSYNC", "never"),
    ],
)
def test_an_invalid_variable_is_named_with_its_value(
    kind: type[CommonSettings], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(kind)
    assert f"{name}={value!r}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_invalid_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT", "none")
    monkeypatch.setenv("BLOCK_MS", "-5")
    with pytest.raises(SettingsError, match="COUNT") as caught:
        load_settings(WorkerSettings)
    assert "BLOCK_MS" in str(caught.value)


def test_reads_must_be_shorter_than_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASE_MS", "1000")
    monkeypatch.setenv("BLOCK_MS", "1000")
    with pytest.raises(SettingsError, match=r"BLOCK_MS \(1000\).*LEASE_MS \(1000\)"):
        load_settings(WorkerSettings)
    monkeypatch.setenv("BLOCK_MS", "999")
    assert load_settings(WorkerSettings).block_ms == 999


def test_a_password_is_not_repeated_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "reddis://:hunter2@localhost")
    with pytest.raises(SettingsError, match="REDIS_URL") as caught:
        load_settings(WorkerSettings)
    assert "hunter2" not in str(caught.value)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "")
    monkeypatch.setenv("COUNT", "")
    assert load_settings(WorkerSettings).redis_url is None


def test_handler_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HANDLERS", " a.b , c,,")
    assert load_settings(WorkerSettings).handler_modules == ["a.b", "c"]


# -- logs -------------------------------------------------------------------------------------


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error else None
    return logging.LogRecord("sluice", logging.INFO, __file__, 1, message, (), exc_info)


@pytest.fixture
def _names() -> Iterator[None]:
    tokens = logs.job_id.set("j1"), logs.request_id.set("r1")
    yield
    logs.job_id.reset(tokens[0])
    logs.request_id.reset(tokens[1])


def test_plain_lines() -> None:
    assert logs.TextFormatter("%(message)s").format(record("hello")) == "hello"
    line = json.loads(logs.JsonFormatter().format(record("hello")))
    assert {"time", "level", "logger", "message"} == set(line)
    assert (line["level"], line["logger"], line["message"]) == ("info", "sluice", "hello")


@pytest.mark.usefixtures("_names")
def test_lines_have_their_job_and_request() -> None:
    assert logs.TextFormatter("%(message)s").format(record("x")) == "x job_id=j1 request_id=r1"
    line = json.loads(logs.JsonFormatter().format(record("x")))
    assert (line["job_id"], line["request_id"]) == ("j1", "r1")


@pytest.mark.parametrize("odd", ["two\nlines", "\x00\x1b[31m", "\ud800", "ü"])
def test_a_json_line_is_always_one_line(odd: str) -> None:
    line = logs.JsonFormatter().format(record(odd, ValueError(odd)))
    assert "\n" not in line
    assert "ValueError" in json.loads(line)["exception"]


def test_configure_writes_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.root.handlers[:], logging.root.level
    monkeypatch.setenv("LOG_FORMAT", "json")
    monkeypatch.setenv("LOG_LEVEL", "warning")
    try:
        logs.configure(load_settings(WorkerSettings))
        [guard] = logging.root.handlers
        assert isinstance(guard, ThrottlingHandler)
        handler = guard.target
        assert isinstance(handler.formatter, logs.JsonFormatter)
        assert logging.root.level == logging.WARNING
        assert getattr(handler, "stream", None) is sys.stderr
    finally:
        logging.root.handlers[:] = before[0]
        logging.root.setLevel(before[1])
