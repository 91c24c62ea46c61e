"""/opt/redis-worker/echo_worker.py: entry point of redis-echo-worker.service."""

import os
import sys

sys.path.pop(0)  # this directory: nothing in it may be imported
# Handlers are imported with their first job. An upgrade may move the link `venv` before that, so
# resolve it now and stay with this release.
sys.path[:] = [os.path.realpath(path) for path in sys.path]

from sluice.worker.echo_worker import main  # noqa: E402

main()
