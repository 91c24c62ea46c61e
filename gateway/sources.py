"""What can be watched: a stream of events, how it is called in hints, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from common.contracts.jobs import TERMINAL, EventType, JobKeys
from common.contracts.workflow import ENDING, JOB_ID, WorkflowKeys
from gateway.frames import Frame, entry_frame


class Source(NamedTuple):
    """One job's events."""

    #: What hints call it.
    name: str
    #: Key of the stream, and of the record without which there is no such job; '' for a stream
    #: that outlives whatever it tells of.
    events: str
    record: str
    #: Types of events after which a live stream is over.
    ending: frozenset[str]
    #: Type of the first event; '' where ids are numbers without holes, from 1 on. Such a stream
    #: may also go on after its end: when the job is taken up again.
    first: str = ""
    #: How an entry of the stream is told.
    frame: Callable[[list[Any]], Frame] = entry_frame
    #: Where a stream tells of more than what is watched: which frames are of that.
    wanted: Callable[[Frame], bool] | None = None
    #: Whether ids are times, though there is no first event.
    timed: bool = False
    #: Of the partition that has it; '' for the home.
    tag: str = ""

    @property
    def numbered(self) -> bool:
        """Whether ids are numbers instead of times."""
        return not self.first and not self.timed

    @property
    def goes_on(self) -> bool:
        """Whether more may follow an end."""
        return not self.first


def job_source(keys: JobKeys, job_id: str) -> Source:
    """The events of a core job."""
    # A foreign hand may have named its job as workflow jobs are named: that one has no hints.
    name = job_id if not JOB_ID.match(job_id) else keys.job(job_id)
    record, first = keys.job(job_id), EventType.QUEUED.value
    return Source(name, keys.events(job_id), record, TERMINAL, first, tag=keys.tag)


def workflow_source(keys: WorkflowKeys, job_id: str, ending: frozenset[str] = ENDING) -> Source:
    """The events of a workflow job."""
    return Source(job_id, keys.events(job_id), keys.job(job_id), ending)
