"""Wheel and source distribution: their files, reproducible builds, and an installation."""

from __future__ import annotations

import os
import tarfile
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sluice.common.version import VERSION
from tests.support.installed import Installation
from tests.support.servers import RealServer
from tools import distribution

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("builds and installs the wheel"),
    pytest.mark.xdist_group("distribution"),
]
#: Top-level folders that are subpackages of `sluice`.
LINKED = ("common", "gateway", "ops", "worker")
EPOCH = 1_600_000_000


def package_files() -> set[str]:
    """The tracked files of the package, with their paths in the wheel."""
    found = set()
    for name in distribution.tracked_files():
        first = name.partition("/")[0]
        if first in LINKED:
            found.add(f"sluice/{name}")
        elif first == "sluice" and not (distribution.ROOT / name).is_symlink():
            found.add(name)
    return found


def test_the_wheel_has_one_import_package(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    assert {name.partition("/")[0] for name in names} == {"sluice", f"sluice-{VERSION}.dist-info"}


def test_the_wheel_has_every_file_of_the_package_once(built: tuple[Path, Path]) -> None:
    names = [name for name in zipfile.ZipFile(built[0]).namelist() if ".dist-info/" not in name]
    assert len(names) == len(set(names))
    assert set(names) == package_files()
    assert {
        "sluice/py.typed",
        "sluice/worker/__init__.py",
        "sluice/common/jobs/lua/gateway/enqueue.lua",
        "sluice/worker/features/rag/lua/commit.lua",
        "sluice/gateway/dashboard/static/index.html",
        "sluice/ops/model/model.lock",
    } <= set(names)


def test_the_wheel_has_metadata_command_and_licence(built: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(built[0])
    about = f"sluice-{VERSION}.dist-info"
    assert f"\nVersion: {VERSION}\n" in wheel.read(f"{about}/METADATA").decode()
    assert (
        wheel.read(f"{about}/entry_points.txt") == b"[console_scripts]\nsluice = sluice.cli:main\n"
    )
    assert wheel.read(f"{about}/licenses/LICENSE") == (distribution.ROOT / "LICENSE").read_bytes()


def test_the_source_distribution_has_the_installer_and_no_links(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        assert all(member.isfile() for member in archive)
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() <= names
    assert {"pyproject.toml", "README.md", "deploy/install.sh", "docs/README.md"} <= names
    assert not {name.partition("/")[0] for name in names} & {*LINKED, "tests"}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_are_identical(kind: str, tmp_path: Path) -> None:
    """In different directories, with different times and permissions of the files."""
    contents = []
    for number, name in enumerate(("one", "another directory")):
        project = tmp_path / name
        distribution.copy_tracked_files(project)
        for path in project.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700 | 0o055 * number)
                os.utime(path, (number * 10**9, number * 10**9))
        contents.append(distribution.hatchling(project, kind, tmp_path, EPOCH).read_bytes())
    assert contents[0] == contents[1]


def test_files_have_the_time_of_the_build(tmp_path: Path) -> None:
    wheel, sdist = distribution.build(tmp_path, EPOCH)
    expected = datetime.fromtimestamp(EPOCH, timezone.utc).timetuple()[:6]
    assert {info.date_time for info in zipfile.ZipFile(wheel).infolist()} == {expected}
    with tarfile.open(sdist) as archive:
        assert {(member.mtime, member.uid, member.uname) for member in archive} == {(EPOCH, 0, "")}
    assert sdist.read_bytes()[4:8] == EPOCH.to_bytes(4, "little")  # in the header of gzip


def test_the_source_distribution_builds_the_same_wheel(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    [project] = tmp_path.iterdir()
    wheel = distribution.hatchling(project, "wheel", tmp_path, 1_700_000_000)
    assert wheel.read_bytes() == built[0].read_bytes()


def test_files_of_earlier_builds_are_removed(tmp_path: Path) -> None:
    old = [tmp_path / name for name in ("sluice-0.0.1-py3-none-any.whl", "sluice-0.0.1.tar.gz")]
    other = tmp_path / "other-1.whl"
    for path in (*old, other):
        path.touch()
    built = distribution.build(tmp_path, EPOCH)
    assert set(tmp_path.iterdir()) == {other, *built}


# -- the installed wheel -------------------------------------------------------------------------


def test_the_installed_package_is_not_the_source_tree(
    installed: Installation, tmp_path: Path
) -> None:
    code = (
        "import importlib.util, sys, sluice, sluice.worker, sluice.common.jobs.scripts\n"
        "print(sluice.__file__, sluice.common.__file__, *sys.path)\n"
        "for name in ('common', 'client', 'gateway', 'worker', 'ops'):\n"
        "    assert importlib.util.find_spec(name) is None, name\n"
    )
    done = installed.run(tmp_path, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    package, common, *paths = done.stdout.split()
    venv = Path(installed.python).parents[1]
    assert Path(package).is_relative_to(venv)
    assert Path(common).is_relative_to(venv)
    assert str(distribution.ROOT) not in paths


def test_the_installed_command_prints_the_version(installed: Installation, tmp_path: Path) -> None:
    command = str(Path(installed.python).with_name("sluice"))
    for words in (("-m", "sluice", "version"), (command, "version")):
        done = installed.run(tmp_path, *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"sluice {VERSION}\n", "")


def test_an_installed_gateway_and_worker_run_a_job(
    installed: Installation, one_server: RealServer, tmp_path: Path
) -> None:
    gateway = installed.gateway(tmp_path, one_server.url)
    worker = installed.worker(tmp_path, "sluice.worker.echo_worker", one_server.url)
    try:
        url = gateway.wait_until_listening().url
        done = installed.run(
            tmp_path, "-m", "sluice", "submit", "chat", "hello", "--wait", "--text", SLUICE_URL=url
        )
        assert done.returncode == 0, done.stderr + worker.log
        assert "hello" in done.stdout
        assert gateway.http.get("/ui/").status_code == 200
        assert gateway.http.get("/openapi.json").json()["info"]["version"] == VERSION
    finally:
        gateway.close()
        worker.kill()
