"""/opt/redis-worker/worker.py: what redis-worker@.service runs."""

import os
import sys

sys.path.pop(0)  # this directory: this very file is not the package `worker`
# Handlers are imported with their first job. An upgrade may come before that, and move the link by
# which we were started: stay with the release that it names now.
sys.path[:] = [os.path.realpath(each) for each in sys.path]

from worker.main import main  # noqa: E402

main()
