"""`python -m deploy.installer`."""

from __future__ import annotations

import signal
import sys

from deploy.installer.cli import main

if __name__ == "__main__":
    # A terminal that goes away must not leave half an installation: as Ctrl-C, it is taken back.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
