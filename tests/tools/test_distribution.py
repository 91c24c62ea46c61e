"""`make dist` without building: files, time and errors. Builds: tests/process/package."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tools import distribution

#: Time of the commit in seconds.
COMMITTED = 1_000_000_000


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one commit of a file and a link, made at COMMITTED."""
    monkeypatch.setattr(distribution, "ROOT", tmp_path)
    monkeypatch.delenv(distribution.EPOCH, raising=False)
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "file").write_text("text")
    (tmp_path / "link").symlink_to("directory")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "name")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "name@example.org")
        monkeypatch.setenv(f"GIT_{name}_DATE", f"{COMMITTED} +0000")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Add files"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_only_tracked_files_are_copied(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (clone / "directory" / "untracked").touch()
    target = tmp_path_factory.mktemp("copy")
    distribution.copy_tracked_files(target)
    assert sorted(path.name for path in target.rglob("*")) == ["directory", "file", "link"]
    assert (target / "link").readlink() == Path("directory")


def test_a_removed_file_is_left_out(clone: Path) -> None:
    (clone / "directory" / "file").unlink()
    assert distribution.tracked_files() == ["link"]


def test_changes_of_tracked_files_are_detected(clone: Path) -> None:
    (clone / "untracked").touch()
    assert not distribution.has_changes()
    (clone / "directory" / "file").write_text("other")
    assert distribution.has_changes()


@pytest.mark.usefixtures("clone")
def test_the_time_is_that_of_the_last_commit() -> None:
    assert distribution.build_time() == COMMITTED


@pytest.mark.usefixtures("clone")
def test_the_environment_can_set_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(distribution.EPOCH, "200")
    assert distribution.build_time() == 200
    monkeypatch.setenv(distribution.EPOCH, "yesterday")
    with pytest.raises(distribution.BuildError, match="number of seconds, but is 'yesterday'"):
        distribution.build_time()


def test_outside_a_clone_the_error_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distribution, "ROOT", tmp_path)
    assert distribution.main([str(tmp_path / "dist")]) == 1
    assert capsys.readouterr().err.startswith("make dist: git status failed, run it in a clone:")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_is_reported(clone: Path) -> None:
    (clone / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(distribution.BuildError, match="hatchling failed"):
        distribution.hatchling(clone, "wheel", clone, COMMITTED)


def test_every_extra_is_documented() -> None:
    extras = set(metadata.metadata("sluice").get_all("Provides-Extra") or []) - {"dev"}
    assert len(extras) > 5
    text = (distribution.ROOT / "docs" / "installation.md").read_text()
    assert {extra for extra in extras if f"`{extra}`" not in text} == set()
