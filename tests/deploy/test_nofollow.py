"""The installer follows no links in Sluice's directories: services may write some of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.installer import backup, nofollow
from deploy.installer.errors import InstallError, Unsuitable
from deploy.installer.file_steps import MakeDirectory, Remove, Symlink, WriteFile
from deploy.installer.host import Host
from deploy.installer.layout import Layout
from tests.support.deploy.fake_machine import FakeMachine
from tests.support.servers import missing

DIRECTORIES = [str(path) for path in Layout().directories]
USER, GROUP = "nobody", "nogroup"
NOBODY = 65534


class LiveHost(Host):
    """Sets owners below a root directory, too."""

    @property
    def is_live(self) -> bool:
        return True


@pytest.fixture
def live(tmp_path: Path) -> LiveHost:
    if os.geteuid() != 0:
        missing("only root can change owners")
    return LiveHost(Layout(tmp_path))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that is not Sluice's."""
    directory = tmp_path / "outside"
    (directory / "cron.d").mkdir(parents=True, mode=0o755)
    (directory / "shadow").write_text("secret")
    (directory / "shadow").chmod(0o600)
    return directory


def state(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """Mode, owner and number of names of everything in a directory, and of itself."""
    found = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        at = path.lstat()
        names = 1 if stat.S_ISDIR(at.st_mode) else at.st_nlink
        found[str(path.relative_to(directory))] = (at.st_mode, at.st_uid, at.st_gid, names)
    return found


# -- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_link_at_any_level_is_refused(machine: FakeMachine, outside: Path, name: str) -> None:
    assert machine.install() == 0
    path = machine.layout.at(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(path.with_name("moved"))
    path.symlink_to(outside)
    before = state(outside)
    machine.systemd.commands = []
    for command in ("install", "upgrade", "uninstall", "backup", "restore"):
        file = [outside / "backup.tgz"] if command in ("backup", "restore") else []
        assert machine.run(command, *file) == 78, command
        assert f"{path} is a symbolic link" in machine.error
        assert "bind mount" in machine.error
    assert machine.run("uninstall", "--purge", "--yes") == 78
    assert state(outside) == before
    assert machine.systemd.commands == []
    path.unlink()
    if path.with_name("moved").exists():
        path.with_name("moved").rename(path)
    assert machine.install() == 0


def test_directories_above_those_of_services_are_roots(machine: FakeMachine) -> None:
    machine.install()
    assert machine.mode("/var/lib/sluice-images") == 0o750
    for name in ("spool", "store"):
        assert machine.mode(f"/var/lib/sluice-images/{name}") == 0o770
    for path in ("/var/lib/sluice", "/opt/redis-worker"):
        assert machine.mode(path) == 0o755


def test_the_image_directory_of_earlier_releases_becomes_roots(live: LiveHost) -> None:
    """It belonged to the workers; nothing in it changes its owner."""
    images = live.layout.images
    images.mkdir(parents=True)
    images.chmod(0o770)
    (images / "spool").mkdir()
    for path in (images, images / "spool"):
        os.chown(path, NOBODY, NOBODY)
    step = MakeDirectory(live, images, 0o750, "root", GROUP)
    assert step.pending() == f"set {images} to 0750 root:{GROUP}"
    step.apply()
    assert step.pending() is None
    assert (images.stat().st_uid, stat.S_IMODE(images.stat().st_mode)) == (0, 0o750)
    assert (images / "spool").stat().st_uid == NOBODY


def test_a_system_directory_may_be_on_another_disk(machine: FakeMachine, tmp_path: Path) -> None:
    """Only root can change a link in a directory of root."""
    (tmp_path / "disk").mkdir()
    machine.root.mkdir(mode=0o755)
    (machine.root / "opt").symlink_to(tmp_path / "disk")
    assert machine.install() == 0
    assert (tmp_path / "disk" / "redis-gateway" / "main.py").is_file()


def test_a_backup_does_not_read_what_the_snapshot_points_to(
    machine: FakeMachine, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install()
    (machine.layout.redis_data / "dump.rdb").symlink_to(outside / "shadow")
    file = outside / "backup.tgz"
    for name, expected in (("dump.rdb", "is a symbolic link"), ("../../x", "not a file name")):
        monkeypatch.setattr(backup, "admin", lambda ctx, name=name: FakeRedis(name))
        assert machine.run("backup", file) in (1, 78)
        assert expected in machine.error
        assert not file.exists()


class FakeRedis:
    """A Redis under the control of an attacker."""

    def __init__(self, snapshot: str) -> None:
        self._snapshot = snapshot

    def __enter__(self) -> FakeRedis:
        return self

    def __exit__(self, *error: object) -> None: ...

    def number(self, *words: str) -> int:
        return 1

    def info(self, section: str) -> dict[str, str]:
        return {
            "redis_version": "7.2.0",
            "rdb_bgsave_in_progress": "0",
            "rdb_last_bgsave_status": "ok",
        }

    def execute(self, *words: str) -> list[str]:
        return ["dbfilename", self._snapshot]


# -- steps, for links that appear after the first check --------------------------------------------


def test_a_directory_step_changes_no_target(live: LiveHost, tmp_path: Path, outside: Path) -> None:
    path = tmp_path / "spool"
    path.symlink_to(outside)
    before = state(outside)
    step = MakeDirectory(live, path, 0o770, USER, GROUP)
    for attempt in (step.pending, step.apply):
        with pytest.raises(Unsuitable, match=f"{path} is a symbolic link"):
            attempt()
    assert state(outside) == before


def test_new_owners_do_not_reach_beyond_the_directory(
    live: LiveHost, tmp_path: Path, outside: Path
) -> None:
    spool = tmp_path / "spool"
    (spool / "deep").mkdir(parents=True)
    (spool / "deep" / "own").write_text("")
    (spool / "deep" / "file").symlink_to(outside / "shadow")
    (spool / "tree").symlink_to(outside)
    os.mkfifo(spool / "pipe")
    before = state(outside)
    MakeDirectory(live, spool, 0o770, USER, GROUP).apply()
    assert state(outside) == before
    owners = {path.lstat().st_uid for path in (spool, *spool.rglob("*"))}
    assert owners == {NOBODY}


def test_a_hard_link_keeps_its_owner(live: LiveHost, tmp_path: Path, outside: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    os.link(outside / "shadow", spool / "upload")
    with pytest.raises(Unsuitable, match="has a second name"):
        MakeDirectory(live, spool, 0o770, USER, GROUP).apply()
    assert (outside / "shadow").stat().st_uid == 0


def test_a_name_that_changes_after_the_check_gives_nothing_away(
    live: LiveHost, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    os.mkfifo(spool / "pipe")

    def replacing(check: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def checked(*words: Any, **given: Any) -> os.stat_result:
            found = check(*words, **given)
            if stat.S_ISFIFO(found.st_mode) and not (spool / "old").is_symlink():
                (spool / "old").symlink_to("pipe")
                (spool / "pipe").unlink()
                os.link(outside / "shadow", spool / "pipe")
            return found

        return checked

    for name in ("stat", "fstat"):
        monkeypatch.setattr(os, name, replacing(getattr(os, name)))
    MakeDirectory(live, spool, 0o770, USER, GROUP).apply()
    assert (spool / "pipe").samefile(outside / "shadow")
    assert (outside / "shadow").stat().st_uid == 0


def test_an_unknown_user_is_reported(live: LiveHost, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="there is no user sluice-nobody"):
        MakeDirectory(live, tmp_path / "new", 0o770, "sluice-nobody", GROUP).apply()


@pytest.mark.parametrize("above", [False, True])
def test_files_are_not_written_through_links(tmp_path: Path, outside: Path, above: bool) -> None:
    host = Host(Layout(tmp_path))
    before = state(outside)
    home = tmp_path / "home"
    if above:
        home.symlink_to(outside)
        tmp_path.chmod(0o777)  # any user may have created the link
        steps = (
            WriteFile(host, home / "shadow", "new"),
            Symlink(home / "shadow", "elsewhere"),
            Remove(home / "shadow"),
        )
        for step in steps:
            for attempt in (step.pending, step.apply):
                with pytest.raises(Unsuitable, match=f"{home} is a symbolic link"):
                    attempt()
    else:
        home.mkdir()
        for name in ("a", "b"):
            (home / name).symlink_to(outside / "shadow")
        write = WriteFile(host, home / "a", "new", 0o644)
        write.apply()
        assert not (home / "a").is_symlink()
        write.undo()
        assert (home / "a").readlink() == outside / "shadow"
        Remove(home / "b").apply()
        assert not (home / "b").is_symlink()
    assert state(outside) == before


def test_settings_behind_a_link_are_neither_read_nor_replaced(
    tmp_path: Path, outside: Path
) -> None:
    path = tmp_path / "gateway.env"
    path.symlink_to(outside / "shadow")
    step = WriteFile(Host(Layout(tmp_path)), path, "template", once=True)
    with pytest.raises(Unsuitable, match="is a symbolic link"):
        step.pending()


def test_a_link_above_is_followed_only_if_it_is_roots(tmp_path: Path, outside: Path) -> None:
    (outside / "home").mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(outside)
    with nofollow.open_directory(shared / "link" / "home") as directory:
        assert os.path.samestat(os.fstat(directory), (outside / "home").stat())
    shared.chmod(0o777)
    with (
        pytest.raises(Unsuitable, match="link is a symbolic link"),
        nofollow.open_directory(shared / "link" / "home"),
    ):
        pass


@pytest.mark.parametrize("create", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read(tmp_path: Path, create: Callable[[Path], None]) -> None:
    create(tmp_path / "log")
    with pytest.raises(Unsuitable, match="is not a regular file"):
        nofollow.read_text(tmp_path / "log")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(descriptor: int) -> None:
        raise InstallError("no owner")

    with pytest.raises(InstallError):
        nofollow.write(tmp_path / "file", b"x", 0o600, fail)
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        nofollow.link(tmp_path / "directory", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]
