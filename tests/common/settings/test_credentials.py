"""Secrets from systemd credentials, and messages without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import EXIT_CONFIG, SettingsError
from common.settings.base import CommonSettings, load_settings
from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings

KINDS: list[type[CommonSettings]] = [GatewaySettings, WorkerSettings]
URL = "unix://gateway:hunter2@/run/sluice/redis.sock"


@pytest.fixture(autouse=True)
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in KINDS:
        for name in kind.model_fields:
            monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_is_read_without_its_last_newline(
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
def test_without_credentials_there_is_no_warning(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
