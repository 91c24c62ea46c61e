"""The contract's echo worker: `python -m worker.echo_worker`. Answers every task with its echo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import runtime
from common.checked_settings import worker_settings
from worker.handlers import echo
from worker.images import refusing as refusing_images
from worker.main import run_with
from worker.registry import Registry
from worker.workflows import refusing

if TYPE_CHECKING:
    from common.settings import WorkerSettings


def run(settings: WorkerSettings) -> int:
    """Run an echo worker to its end; returns the exit code."""
    registry = Registry()
    echo.register(registry, settings.echo_delay_ms)
    refusing.register(registry)
    refusing_images.register(registry, settings)
    return run_with(registry, settings)


def main() -> None:
    """Entry point of `python -m worker.echo_worker`."""
    runtime.run_process(worker_settings, run)


if __name__ == "__main__":
    main()
