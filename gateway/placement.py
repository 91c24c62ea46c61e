"""Where a new job goes: to which partition, and so with which id.

Whatever a script must see at once lies in one partition. A job whose caller has limits goes where
their state is; one with an Idempotency-Key where that key is; one about documents goes home, where
they are. All others may go anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from common.access_limits import Limits
from common.contracts.jobs import Task
from common.partitions import HOME, Partitions
from gateway.callers import Caller
from gateway.ids import new_job_id, new_job_id_in
from gateway.partitioned_store import PartitionedStore
from gateway.state import GatewayState


class Place(NamedTuple):
    """A new job's id, and the limits that count where it goes."""

    job_id: str
    limits: Limits | None
    #: Whether it could go elsewhere too.
    anywhere: bool = False


def place_of(state: GatewayState, caller: Caller, task: Task, key: str | None) -> Place:
    """For a job that is about to be made; `key` is its Idempotency-Key."""
    store = state.store
    if not isinstance(store, PartitionedStore):
        return Place(new_job_id(caller.tail), caller.limits)
    partitions = state.lines.partitions
    number = _bound_to(partitions, caller, task, key)
    if number is None:
        return Place(store.new_id(caller.tail), None, anywhere=True)
    job_id = new_job_id_in(partitions, number, caller.tail)
    return Place(job_id, caller.limits_under(partitions.keys[number].tag))


def _bound_to(partitions: Partitions, caller: Caller, task: Task, key: str | None) -> int | None:
    """The only partition that will do; None for any."""
    if task is Task.RAG:
        return HOME
    if caller.limits is not None:
        return partitions.number(caller.tenant or caller.key_id)
    if key is not None:
        return partitions.number(f"{caller.tenant} {key}")
    return None
