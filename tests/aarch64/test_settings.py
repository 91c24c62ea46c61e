from __future__ import annotations

import configparser
import os
from pathlib import Path

import pytest

from tests.aarch64 import host_settings
from tests.aarch64.smoke import SERVERS, TESTS
from tests.support.servers import ALL

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TESTS)
def test_every_smoke_test_exists(name: str) -> None:
    assert (PROJECT / name).is_file()


def test_the_servers_of_the_smoke_tests_exist() -> None:
    assert set(SERVERS) <= set(ALL)


@pytest.fixture
def pip_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    config = tmp_path / "pip.conf"
    links = "find-links =\n    /a\n    /b\n"
    config.write_text(f"[global]\ntimeout = 7\n{links}[install]\npre = true\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    monkeypatch.setenv("PIP_PROGRESS_BAR", "off")
    return host_settings.pip_settings()


def test_variables_override_files_of_pip(pip_settings: dict[str, dict[str, str]]) -> None:
    assert pip_settings["global"]["timeout"] == "9"
    assert pip_settings["global"]["progress-bar"] == "off"
    assert pip_settings["global"]["find-links"].split() == ["/a", "/b"]
    assert pip_settings["install"]["pre"] == "true"
    assert "config-file" not in pip_settings["global"]


def test_written_settings_of_pip_are_the_same(
    pip_settings: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    host_settings.write_pip_settings(tmp_path / "written", pip_settings)
    parser = configparser.RawConfigParser()
    parser.read(tmp_path / "written")
    assert {name: dict(parser[name]) for name in parser.sections()} == pip_settings


def test_local_directories_of_settings_are_shared(tmp_path: Path) -> None:
    index, wheels = tmp_path / "index" / "simple", tmp_path / "wheels"
    index.mkdir(parents=True)
    wheels.mkdir()
    values = [f"https://host/simple file://{index}", str(wheels), "180", "/does/not/exist"]
    assert host_settings.paths_of(values) == {index.parent, wheels}
