"""`python -m sluice.worker.echo_worker`: the contract's echo worker, which echoes every payload."""

from __future__ import annotations

from sluice.common.process import runtime
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.features.images import job_failure as image_job_failure
from sluice.worker.features.workflows import job_failure as workflow_job_failure
from sluice.worker.handlers import echo
from sluice.worker.main import run_with
from sluice.worker.registry import Registry


def run(settings: WorkerSettings) -> int:
    """Run an echo worker until it is stopped; returns the exit code."""
    registry = Registry()
    echo.register(registry, settings.echo_delay_ms)
    workflow_job_failure.register(registry)
    image_job_failure.register(registry, settings)
    return run_with(registry, settings)


def main() -> None:
    """Entry point of `python -m sluice.worker.echo_worker`."""
    runtime.run_process(lambda: load_settings(WorkerSettings), run)


if __name__ == "__main__":
    main()
