"""`python -m tests.system`: builds what the system tests boot, and prints progress."""

from __future__ import annotations

from tests.system.cache import print_progress
from tests.system.rootfs import base_tree, what_is_missing
from tests.system.wheelhouse import dependencies, model_wheels

if __name__ == "__main__":
    reason = what_is_missing()
    if reason is None:
        print_progress(f"base tree: {base_tree()}")
        print_progress(f"wheels: {dependencies()}, {model_wheels()}")
    else:
        print_progress(reason)
