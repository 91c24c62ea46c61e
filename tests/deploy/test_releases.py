"""How a release is built: only from wheels whose digests are in lock files."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.installer import wheelhouse
from deploy.installer.host import Host
from deploy.installer.layout import Layout
from deploy.installer.output import Output
from deploy.installer.releases import PipBuilder
from deploy.installer.sources import Sources

LOCKS = [Sources().lock, Sources().build_lock]


class RecordingHost(Host):
    """Records commands; `pip wheel` writes an empty wheel."""

    def __init__(self, root: Path) -> None:
        super().__init__(Layout(root))
        self.commands: list[list[str]] = []

    def run(
        self, argv: Sequence[str | Path], fix: str, env: Mapping[str, str] | None = None
    ) -> str:
        words = [str(word) for word in argv]
        self.commands.append(words)
        if "wheel" in words:
            (Path(words[words.index("-w") + 1]) / "sluice-1-py3-none-any.whl").write_text("")
        return ""

    def pip(self, command: str) -> list[list[str]]:
        return [words for words in self.commands if words[1:4] == ["-m", "pip", command]]


@pytest.mark.parametrize("offline", [False, True])
def test_only_locked_wheels_are_installed(tmp_path: Path, offline: bool) -> None:
    version = Sources().version
    (tmp_path / f"sluice-{version}-py3-none-any.whl").write_text("")
    host = RecordingHost(tmp_path)
    sources = Sources(wheelhouse=tmp_path if offline else None)
    builder = PipBuilder(host, Output(), sources, Path("/usr/bin/python3"))
    for home in ("gateway", "worker"):
        builder.build(tmp_path / home)
    installs = host.pip("install")
    own = [words for words in installs if words[-1].endswith(".whl")]
    assert len(own) == 2
    for words in installs:
        if words in own:
            assert {"--no-deps", "--no-index"} <= set(words)
        else:
            assert "--require-hashes" in words
            assert words[words.index("--only-binary") + 1] == ":all:"
            assert Path(words[-1]) in LOCKS
    if offline:
        assert host.pip("wheel") == []
    else:
        [wheel] = host.pip("wheel")
        assert {"--no-build-isolation", "--no-deps", "--no-index"} <= set(wheel)
        # Neither release contains what built it, and nothing of it is left.
        build = Path(wheel[0]).parents[1]
        assert build not in (tmp_path / "gateway", tmp_path / "worker")
        assert build.parent.exists()
        builder.close()
        assert not build.parent.exists()


def test_the_wheelhouse_builds_with_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(wheelhouse, "pip", lambda *words, **directory: commands.append(words))
    wheelhouse.download(tmp_path, "x86_64", "3.12")
    [download, wheel] = commands
    assert {"--only-binary=:all:", "--require-hashes"} <= set(download)
    assert wheel[:2] == ("wheel", "--no-build-isolation")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_has_digests_and_no_index(lock: Path) -> None:
    text = lock.read_text()
    entries = [line for line in text.splitlines() if not line.startswith((" ", "#"))]
    for line in entries:
        assert re.match(r"[a-z0-9._-]+==\S+( ; .+)? \\$", line), line
    for option in ("://", "--index-url", "--extra-index-url", "--find-links"):
        assert option not in text
    blocks = re.split(r"\n(?=[^\s#])", text)
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)


def test_the_build_lock_has_the_versions_of_development() -> None:
    development = (Sources().checkout / "requirements.lock").read_text()
    pinned = set(re.findall(r"^(\S+==\S+)", development, re.M))
    assert set(re.findall(r"^(\S+==\S+)", Sources().build_lock.read_text(), re.M)) <= pinned


def test_the_build_lock_is_complete() -> None:
    """What the build backend needs, and what that needs, on the oldest Python."""
    locked = set(re.findall(r"^(\S+)==", Sources().build_lock.read_text(), re.M))
    needed, waiting = set(), ["hatchling"]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        if name == "tomli":  # not installed on a newer Python; has no requirements
            continue
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            marker = requirement.marker
            environment = {"python_version": "3.10", "python_full_version": "3.10.0", "extra": ""}
            if requirement.name not in needed and (marker is None or marker.evaluate(environment)):
                waiting.append(requirement.name)
    assert locked == needed
