"""`python -m deploy.installer`."""

from __future__ import annotations

import signal
import sys

from deploy.installer.cli import main

if __name__ == "__main__":
    # SIGTERM and SIGHUP act like Ctrl-C, so that a closed terminal rolls back a partial
    # installation.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
