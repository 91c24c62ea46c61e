"""The handlers that come with Sluice, one for each task of the contract."""

from __future__ import annotations

from common.settings import WorkerSettings
from worker.handlers import echo
from worker.registry import Registry


def register(registry: Registry, settings: WorkerSettings) -> None:
    """Let `registry` do every task, with what `settings` say."""
    echo.register(registry, settings.echo_delay_ms)
