"""Queue messages as Redis hands them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from common import codec
from common.contracts.jobs import QueueField
from worker.kinds import kind_of

_JOB_ID = QueueField.JOB_ID.value.encode()
_TASK = QueueField.TASK.value.encode()
_PAYLOAD = QueueField.PAYLOAD.value.encode()


class Message(NamedTuple):
    """A queue message as read, in bytes: a foreign producer may have written anything."""

    id: str
    fields: Mapping[bytes, bytes]

    @property
    def job_id(self) -> str:
        """The job's id; empty where there is none."""
        return codec.text(self.fields.get(_JOB_ID, b""))

    @property
    def task(self) -> str:
        """What the job asks for."""
        return codec.text(self.fields.get(_TASK, b""))

    @property
    def kind(self) -> str:
        """What its places are counted by (`worker.kinds`)."""
        return kind_of(self.task, self.payload)

    def without_payload(self) -> Message:
        """The same, for those who only want to know whose it is."""
        small = {name: self.fields[name] for name in (_JOB_ID, _TASK) if name in self.fields}
        return Message(self.id, small)

    @property
    def payload(self) -> bytes:
        """The job's input, as written."""
        return self.fields.get(_PAYLOAD, b"")


def message(entry: Sequence[Any]) -> Message:
    """A stream entry as Redis wrote it; one that was deleted meanwhile has no fields.

    A read that also claims adds how long the entry was idle and how often it was delivered.
    """
    entry_id, flat = entry[0], entry[1]
    return Message(entry_id.decode(), dict(zip(flat[::2], flat[1::2])) if flat else {})


def is_reclaimed(entry: Sequence[Any]) -> bool:
    """Whether a read that also claims took this entry from a worker that fell silent."""
    return len(entry) > 3 and int(entry[3]) > 0
