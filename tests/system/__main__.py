"""`python -m tests.system`: builds what the system tests boot, telling how far it is."""

from __future__ import annotations

from tests.system.cache import say
from tests.system.rootfs import base_tree, what_is_missing
from tests.system.wheelhouse import dependencies, model_wheels

if __name__ == "__main__":
    reason = what_is_missing()
    if reason is None:
        say(f"base tree: {base_tree()}")
        say(f"wheels: {dependencies()}, {model_wheels()}")
    else:
        say(reason)
