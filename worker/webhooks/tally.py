"""What a worker has done with webhooks since it began."""

from __future__ import annotations


class Tally:
    """Counts, for the worker's heartbeat."""

    def __init__(self) -> None:
        self.delivered = 0
        self.retried = 0
        self.failed = 0
