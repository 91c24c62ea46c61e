"""/opt/sluice-model/model.py: entry point of sluice-model.service."""

import sys

sys.path.pop(0)  # this directory: nothing in it may be imported

from sluice.cli import main

sys.argv[1:1] = ["model", "serve"]
main()
