"""Replacements for the processing of an image in a child process, found there by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from sluice.common.contracts.images import Stage
from sluice.worker.execution.process_pool.child import note
from sluice.worker.features.images import pixels
from sluice.worker.features.images.pixels.types import ProcessingRequest, ProcessingResult


def _signal_file(order: ProcessingRequest, name: str) -> Path:
    """A file in the parent directory of the spool, for signals between test and process."""
    return Path(order.path).parent.parent / name


def _decode() -> None:
    note(Stage.VALIDATING.value)
    note(Stage.DECODING.value)


def crash(order: ProcessingRequest) -> NoReturn:
    """Crash while decoding."""
    _decode()
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def crash_once(order: ProcessingRequest) -> ProcessingResult:
    """Crash while decoding, the first time only."""
    mark = _signal_file(order, "crashed")
    if not mark.exists():
        mark.touch()
        crash(order)
    return pixels.process(order)


def hang(order: ProcessingRequest) -> None:
    """Never end."""
    _decode()
    time.sleep(600)


def take_all_memory(order: ProcessingRequest) -> None:
    """Allocate more than the memory limit."""
    _decode()
    bytearray(64 << 30)


def _wait_for_signal(order: ProcessingRequest) -> None:
    note(Stage.VALIDATING.value)
    _signal_file(order, f"began-{Path(order.path).name}").touch()
    while not _signal_file(order, "go").exists():
        time.sleep(0.01)


def wait_for_go(order: ProcessingRequest) -> ProcessingResult:
    """Continue when the test gives the signal."""
    _wait_for_signal(order)
    return pixels.process(order)


def hang_after_go(order: ProcessingRequest) -> None:
    """Report the next stage when the test gives the signal, and never end."""
    _wait_for_signal(order)
    note(Stage.DECODING.value)
    time.sleep(600)


def raise_unexpectedly(order: ProcessingRequest) -> NoReturn:
    raise RuntimeError("an unexpected mistake")


def fill_disk(order: ProcessingRequest) -> NoReturn:
    raise OSError(28, "No space left on device")
