"""/opt/redis-worker/worker.py: what redis-worker@.service runs."""

import sys

sys.path.pop(0)  # this directory: this very file is not the package `worker`

from worker.main import main

main()
