"""What follows from settings: for the objects that check them, and those that only carry them."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, ClassVar

from common.contracts.jobs import JobKeys
from common.contracts.lanes import TENANT_LANE, Lane
from common.partitions import Partitions


def names_of(value: str) -> list[str]:
    """A setting that is a list, separated by commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


def own_name() -> str:
    """What a process is called that was given no name: host-pid."""
    return f"{socket.gethostname()}-{os.getpid()}"


class DerivedLanes:
    """The lanes that settings name."""

    if TYPE_CHECKING:  # pydantic would take them for fields of its own
        lanes: str
        tenant_lanes: int

    @property
    def lane_names(self) -> tuple[str, ...]:
        """Each once, the urgent one first, then those of tenants."""
        wanted = names_of(self.lanes)
        named = [lane.value for lane in Lane if lane.value in wanted]
        tenants = [f"{TENANT_LANE}{number}" for number in range(self.tenant_lanes)]
        return (*named, *tenants)


class DerivedKeys:
    """The keys that settings name."""

    if TYPE_CHECKING:
        queue_stream_key: str
        dlq_stream_key: str
        job_index_max: int
        queue_partitions: int

    @property
    def partitions(self) -> Partitions:
        """The key functions for these names, partition by partition."""
        keys = JobKeys(self.queue_stream_key, self.dlq_stream_key, self.job_index_max)
        return Partitions.of(keys, self.queue_partitions)

    @property
    def keys(self) -> JobKeys:
        """The key functions of the home partition, where all is that there is one of."""
        return self.partitions.home


class DerivedOfWorker:
    """What follows from a worker's own settings."""

    #: The process's name in logs and traces.
    service: ClassVar[str] = "sluice-worker"

    if TYPE_CHECKING:
        worker_handlers: str

    @property
    def handler_modules(self) -> list[str]:
        """WORKER_HANDLERS as a list."""
        return names_of(self.worker_handlers)
