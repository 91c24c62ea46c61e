"""Which scripts of the package a worker calls; whether they are there is asked before anything."""

from __future__ import annotations

from typing import Final

from common.bullmq import package

TAKE: Final = "moveToActive-11"
FINISH: Final = "moveToFinished-14"
DELAY: Final = "moveToDelayed-11"
RETRY: Final = "retryJob-11"
HAND_BACK: Final = "moveJobFromActiveToWait-9"
STALLED: Final = "moveStalledJobsToWait-9"
RENEW: Final = "extendLocks-1"
PROGRESS: Final = "updateProgress-3"
LOG: Final = "addLog-2"
SCHEDULE: Final = "updateJobScheduler-12"
SCRIPTS: Final = (
    TAKE, FINISH, DELAY, RETRY, HAND_BACK, STALLED, RENEW, PROGRESS, LOG, SCHEDULE,
)  # fmt: skip


def check() -> None:
    """Raise SettingsError unless the package is there, and the one we know."""
    package.require("BULLMQ_QUEUES", SCRIPTS)
