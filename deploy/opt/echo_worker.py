"""/opt/redis-worker/echo_worker.py: what redis-echo-worker.service runs."""

import sys

sys.path.pop(0)  # this directory: the worker.py beside this file is not the package `worker`

from worker.echo_worker import main

main()
