"""/opt/sluice-model/model.py: what sluice-model.service runs."""

import sys

sys.path.pop(0)  # this directory: nothing in it is to be found by name

from sluice.cli import main

sys.argv[1:1] = ["model", "serve"]
main()
