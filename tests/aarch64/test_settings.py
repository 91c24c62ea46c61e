from __future__ import annotations

import configparser
import os
from pathlib import Path

import pytest

from tests.aarch64 import host_settings
from tests.aarch64.smoke import SERVERS, TESTS
from tests.support.servers import ALL

PROJECT = Path(__file__).parents[2]


def test_smoke_tests_and_their_servers_exist() -> None:
    assert all((PROJECT / name).is_file() for name in TESTS)
    assert set(SERVERS) <= set(ALL)


def test_settings_of_pip_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables override files."""
    config = tmp_path / "pip.conf"
    links = "find-links =\n    /a\n    /b\n"
    config.write_text(f"[global]\ntimeout = 7\n{links}[install]\npre = true\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    monkeypatch.setenv("PIP_PROGRESS_BAR", "off")
    settings = host_settings.pip_settings()
    assert settings["global"]["timeout"] == "9"
    assert settings["global"]["progress-bar"] == "off"
    assert settings["global"]["find-links"].split() == ["/a", "/b"]
    assert settings["install"]["pre"] == "true"
    assert "config-file" not in settings["global"]
    host_settings.write_pip_settings(tmp_path / "written", settings)
    parser = configparser.RawConfigParser()
    parser.read(tmp_path / "written")
    assert {name: dict(parser[name]) for name in parser.sections()} == settings


def test_local_directories_of_settings_are_shared(tmp_path: Path) -> None:
    index, wheels = tmp_path / "index" / "simple", tmp_path / "wheels"
    index.mkdir(parents=True)
    wheels.mkdir()
    values = [f"https://host/simple file://{index}", str(wheels), "180", "/does/not/exist"]
    assert host_settings.paths_of(values) == {index.parent, wheels}
