"""What a process may do with an image instead of processing it, for tests. Found by name there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from common.contracts.images import Stage
from worker.compute.child import note
from worker.images import pixels
from worker.images.pixels import Made, Order


def _beside(order: Order, name: str) -> Path:
    """A file in the spool's parent that test and process agree on."""
    return Path(order.path).parent.parent / name


def crash(order: Order) -> Made:
    """Die in the middle of decoding."""
    note(Stage.VALIDATING)
    note(Stage.DECODING)
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def crash_once(order: Order) -> Made:
    """The same, the first time only."""
    mark = _beside(order, "crashed")
    if not mark.exists():
        mark.touch()
        crash(order)
    return pixels.process(order)


def hang(order: Order) -> Made:
    """Never end."""
    note(Stage.VALIDATING)
    note(Stage.DECODING)
    time.sleep(600)
    raise AssertionError


def take_all_memory(order: Order) -> Made:
    """Want more than there is."""
    note(Stage.VALIDATING)
    note(Stage.DECODING)
    bytearray(64 << 30)
    raise AssertionError


def wait_for_go(order: Order) -> Made:
    """Go on once the test says so."""
    note(Stage.VALIDATING)
    _beside(order, f"began-{Path(order.path).name}").touch()
    while not _beside(order, "go").exists():
        time.sleep(0.01)
    return pixels.process(order)


def break_down(order: Order) -> Made:
    """Fail as only a mistake of ours does."""
    raise RuntimeError("a mistake of ours")


def find_no_room(order: Order) -> Made:
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device")
