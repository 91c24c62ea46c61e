"""Settings: defaults, derived values, credentials, and errors that name every invalid variable."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.common.errors import EXIT_CONFIG, SettingsError
from sluice.common.settings.base import CommonSettings, load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from tests.support.processes.worker import ROOT

KINDS: list[type[CommonSettings]] = [GatewaySettings, WorkerSettings]


@pytest.fixture(autouse=True)
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty environment, and the directory of credentials."""
    for kind in KINDS:
        for name in kind.model_fields:
            monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_described(kind: type[CommonSettings]) -> None:
    for name, field in kind.model_fields.items():
        assert field.description, name
        assert field.description[-1] in ".`", name


@pytest.mark.parametrize("kind", KINDS)
def test_webhook_hosts_are_checked(
    kind: type[CommonSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "127.0.0.1, hooks.lan,10.0.0.0/8")
    load_settings(kind)
    monkeypatch.setenv("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "http://hooks.lan/")
    with pytest.raises(SettingsError, match=r"WORKFLOW_WEBHOOK_ALLOWED_HOSTS.*not a host name"):
        load_settings(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_hold(kind: type[CommonSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "")  # an empty variable counts as unset
    monkeypatch.setenv("COUNT", "")
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


INVALID: dict[type[CommonSettings], dict[str, tuple[str, ...]]] = {
    GatewaySettings: {
        "REDIS_URL": (
            *("http://localhost", "foo"),
            *("redis://localhost:port/0", "redis://localhost:99999/0"),
        ),
        "PORT": ("eighty", "65536", "-1"),
        "JOB_TTL_S": ("0", "1.5", "2592001"),
        "BACKPRESSURE_MAX_BACKLOG": ("0", "abc"),
        "MAX_PAYLOAD_BYTES": ("-1",),
        "IDEMPOTENCY_TTL_S": ("0",),
        "SSE_HEARTBEAT_S": ("0", "nan"),
        "SSE_MAX_LIFE_S": ("nan",),
        "MAX_WAIT_S": ("601", "nan"),
        "LOG_LEVEL": ("loud",),
    },
    WorkerSettings: {
        **dict.fromkeys(("BLOCK_MS", "COUNT", "MAX_INFLIGHT"), ("0",)),
        "DEFAULT_TTL_S": ("x",),
        "LEASE_MS": ("1",),
        "SHUTDOWN_GRACE_S": ("-1",),
        "LOG_FORMAT": ("xml",),
        "EMBEDDED_FSYNC": ("never",),
    },
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, name, value)
        for kind, invalid in INVALID.items()
        for name, values in invalid.items()
        for value in values
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


@pytest.mark.parametrize(
    ("kind", "name"),
    [(GatewaySettings, "IMAGE_UPLOAD_SECRET"), (WorkerSettings, "WORKFLOW_WEBHOOK_SECRET")],
)
def test_a_short_signing_key_is_refused_without_showing_it(
    kind: type[CommonSettings], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hunter2" * 3)
    with pytest.raises(SettingsError) as caught:
        load_settings(kind)
    assert str(caught.value).startswith(f"{name}: it has 21 characters, 24 are the least")
    assert "hunter2" not in str(caught.value)
    for key in ("", "k" * 24):
        monkeypatch.setenv(name, key)
        assert getattr(load_settings(kind), name.lower()).get_secret_value() == key


def test_reads_must_be_shorter_than_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASE_MS", "1000")
    monkeypatch.setenv("BLOCK_MS", "1000")
    with pytest.raises(SettingsError, match=r"BLOCK_MS \(1000\).*LEASE_MS \(1000\)"):
        load_settings(WorkerSettings)
    monkeypatch.setenv("BLOCK_MS", "999")
    assert load_settings(WorkerSettings).block_ms == 999


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_are_named_once_and_in_one_order(
    kind: type[CommonSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {("", 0): (), ("low", 0): ("low",), ("low, high,low", 0): ("high", "low")}
    named["high", 2] = ("high", "tenants.0", "tenants.1")
    for (lanes, tenants), names in named.items():
        assert load_settings(kind, lanes=lanes, tenant_lanes=tenants).lane_names == names
    for odd in ("normal", "urgent", "high;low", "HIGH"):
        monkeypatch.setenv("LANES", odd)
        with pytest.raises(SettingsError, match=r"LANES=.*is not a lane; write high, low"):
            load_settings(kind)


def test_a_weight_is_a_tenant_and_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANT_WEIGHTS", "acme:99")
    with pytest.raises(SettingsError, match=r"TENANT_WEIGHTS=.*weight of acme must be 1 to 16"):
        load_settings(GatewaySettings)


def test_derived_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "QUEUE_STREAM_KEY": "q", "LANES": "low,high", "TENANT_LANES": "2", "QUEUE_PARTITIONS": "3",
        "WORKER_HANDLERS": " a.b , c,,",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(WorkerSettings)
    assert settings.service == "sluice-worker"
    assert settings.lane_names == ("high", "low", "tenants.0", "tenants.1")
    assert settings.handler_modules == ["a.b", "c"]
    assert settings.keys.queue == "{0}:q"
    assert len(settings.partitions.keys) == 3


def test_secrets_are_not_shown_and_settings_are_immutable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "sk-very-secret")
    settings = load_settings(WorkerSettings)
    assert "very-secret" not in f"{settings!r} {settings} {vars(settings)}"
    with pytest.raises(Exception, match="frozen"):
        settings.lanes = "high"
    assert settings.model_copy(update={"tenant_lanes": 1}).lane_names == ("tenants.0",)
    assert settings.lane_names == ()


another_process = pytest.mark.slow("starts a process; one of them is in the fast tier")


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_default_name_of_a_worker_is_host_and_pid() -> None:
    script = (
        "import os; from sluice.common.settings.base import load_settings; "
        "from sluice.common.settings.worker import WorkerSettings; "
        "s = load_settings(WorkerSettings); "
        "print(os.getpid(), s.consumer, s.bullmq_worker_name)"
    )
    pid, *names = run(script).stdout.split()
    assert names == [f"{socket.gethostname()}-{pid}"] * 2


@pytest.mark.parametrize(
    ("module", "environment"),
    [
        ("sluice.worker.main", {"COUNT": "0", "LEASE_MS": "x"}),
        pytest.param("worker.echo_worker", {"BLOCK_MS": "40000"}, marks=another_process),
        pytest.param(
            "sluice.worker.bullmq.main",
            {"REDIS_URL": "http://user:hidden@box"},
            marks=another_process,
        ),
    ],
)
def test_a_settings_error_is_printed_once(
    module: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(f"from {module} import main; main()", **environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception) as caught:
        load_settings(WorkerSettings)
    assert (done.returncode, done.stderr) == (EXIT_CONFIG, f"sluice: {caught.value}\n")


# -- Secrets from systemd credentials, and messages without secrets -------------------------------


URL = "unix://gateway:hunter2@/run/sluice/redis.sock"


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_is_read_without_newline(
    kind: type[CommonSettings], credentials: Path
) -> None:
    (credentials / "redis_url").write_text(f"{URL}\n")
    assert load_settings(kind).redis_url == URL


def test_the_environment_takes_precedence_over_the_credential(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (credentials / "redis_url").write_text(URL)
    monkeypatch.setenv("REDIS_URL", "redis://localhost")
    assert load_settings(GatewaySettings).redis_url == "redis://localhost"
    monkeypatch.setenv("REDIS_URL", "")
    assert load_settings(GatewaySettings).redis_url == URL


@pytest.mark.parametrize("directory", ["", "/nonexistent", __file__])
def test_no_credentials_cause_no_warning(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", directory)  # a warning would fail the test
    assert load_settings(GatewaySettings).redis_url is None


@pytest.mark.parametrize("bad", ["", "reddis://:hunter2@localhost", "redis://:hunter2@h:99999"])
def test_an_invalid_credential_is_a_settings_error(bad: str, credentials: Path) -> None:
    """Also an empty one: starting a private Redis instead would be a surprise."""
    (credentials / "redis_url").write_text(bad)
    with pytest.raises(SettingsError, match="REDIS_URL: ") as caught:
        load_settings(WorkerSettings)
    assert caught.value.exit_code == EXIT_CONFIG
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__  # its text contains the value


def test_an_undecodable_credential_is_a_settings_error(credentials: Path) -> None:
    (credentials / "redis_url").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="credentials"):
        load_settings(WorkerSettings)


@pytest.mark.parametrize(
    "url",
    [
        "reddis://gateway:hunter2@localhost",
        *(f"redis://:hunter{mark}2@host:1" for mark in "#/?"),
        "reddis://:hun/ter2@hunter2@localhost:6379/0",
        "unixx://gateway:hunter2@/run/sluice/redis.sock",
        "unixx:///run/sluice/redis.sock?db=0&password=hunter2",
        "gateway:hunter2@localhost",
        "redis://gateway:hunter2@localhost:99999",
        "redis://gateway:hunter2@localhost:port",
        "redis://gateway@localhost:99999?PASSWORD=hunter2&db=1",
    ],
)
def test_no_form_of_url_exposes_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    with pytest.raises(SettingsError, match="REDIS_URL=") as caught:
        load_settings(GatewaySettings)
    assert "ter2" not in str(caught.value)
    assert "hunter" not in str(caught.value)
    if url.startswith("redis://:"):  # it shows how to escape them
        assert "%2F" in str(caught.value)
