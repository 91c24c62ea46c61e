"""The contract's echo worker: `python -m worker.echo_worker`. Answers every task with its echo."""

from __future__ import annotations

from common.process import runtime
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from worker.features.images import job_failure as refusing_images
from worker.features.workflows import job_failure
from worker.handlers import echo
from worker.main import run_with
from worker.registry import Registry


def run(settings: WorkerSettings) -> int:
    """Run an echo worker to its end; returns the exit code."""
    registry = Registry()
    echo.register(registry, settings.echo_delay_ms)
    job_failure.register(registry)
    refusing_images.register(registry, settings)
    return run_with(registry, settings)


def main() -> None:
    """Entry point of `python -m worker.echo_worker`."""
    runtime.run_process(lambda: load_settings(WorkerSettings), run)


if __name__ == "__main__":
    main()
