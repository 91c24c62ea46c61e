"""/opt/redis-worker/echo_worker.py: what redis-echo-worker.service runs."""

import os
import sys

sys.path.pop(0)  # this directory: the worker.py beside this file is not the package `worker`
# Handlers are imported with their first job. An upgrade may come before that, and move the link by
# which we were started: stay with the release that it names now.
sys.path[:] = [os.path.realpath(each) for each in sys.path]

from worker.echo_worker import main  # noqa: E402

main()
