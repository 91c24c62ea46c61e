"""Sluice as users have it: the wheel in a separate virtualenv, or the source tree."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

from tests.support.processes.gateway import ROOT, GatewayProcess, environment
from tests.support.processes.worker import Process
from tests.support.waiting import TIMEOUT_S


class Installation(NamedTuple):
    """A Python that can import Sluice, and what PYTHONPATH needs for that."""

    python: str
    path: tuple[Path, ...] = ()

    def pythonpath(self, *directories: Path) -> str:
        return ":".join(map(str, (*directories, *self.path)))

    def run(
        self, directory: Path, *words: str, pythonpath: tuple[Path, ...] = (), **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs Python with these words in a directory."""
        return subprocess.run(
            [self.python, *words],
            cwd=directory,
            env=environment(**{"PYTHONPATH": self.pythonpath(*pythonpath), **settings}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def gateway(self, directory: Path, redis_url: str, *pythonpath: Path) -> GatewayProcess:
        """A gateway that runs in the directory, and writes its log there."""
        return GatewayProcess(
            (self.python, "-m", "sluice.gateway"), directory / "gateway.log",
            PORT="0", REDIS_URL=redis_url, SLUICE_DATA_DIR=str(directory / "data"),
            PYTHONPATH=self.pythonpath(*pythonpath),
        )  # fmt: skip

    def worker(
        self, directory: Path, module: str, redis_url: str, *pythonpath: Path, **settings: object
    ) -> Process:
        """A worker that runs in the directory, and writes its log there."""
        return Process(
            module, directory / f"{module}.log", python=self.python, consumer="one",
            redis_url=redis_url, sluice_data_dir=directory / "data", block_ms=50, embedder="off",
            pythonpath=self.pythonpath(*pythonpath), **settings,
        )  # fmt: skip


#: The source tree, as `make setup` installs it.
SOURCE_TREE = Installation(sys.executable, (ROOT,))


def install(wheel: Path, directory: Path) -> Installation:
    """Installs only the wheel, without network access; other packages are those of the tests.

    A line of a `.pth` file adds their directory to the path, but not the source tree, which is
    added by another `.pth` file there.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)],
        check=True,
        timeout=TIMEOUT_S,
    )
    [site_packages] = directory.glob("lib/python3*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "packages_of_the_tests.pth").write_text("\n".join(sorted(paths)) + "\n")
    return Installation(str(python))
