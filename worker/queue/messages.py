"""Messages of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.images import IMAGE_TOOL
from sluice.common.contracts.jobs import QueueField, Task
from sluice.common.contracts.workflow.fields import StepPayloadField

#: Internal tools with separate limits, and the task whose limit they count towards as well.
LIMIT_KEY_TASK: Final = {IMAGE_TOOL: Task.TOOL.value}

_TOOL_TASK: Final = Task.TOOL.value
_TOOL: Final = StepPayloadField.TOOL


def limit_key_of(task: str, payload: bytes) -> str:
    """What a job's slots are counted by: its task, or the internal tool that it calls."""
    if task != _TOOL_TASK:
        return task
    tool = codec.parse_payload(payload).get(_TOOL)
    return tool if isinstance(tool, str) and tool in LIMIT_KEY_TASK else task


_JOB_ID = QueueField.JOB_ID.encode()
_TASK = QueueField.TASK.encode()
_PAYLOAD = QueueField.PAYLOAD.encode()


class Message(NamedTuple):
    """A queue message as read, in bytes: a third-party producer may have written anything."""

    id: str
    fields: Mapping[bytes, bytes]
    #: What its slots are counted by; see `limit_key_of`.
    limit_key: str

    @classmethod
    def read(cls, entry_id: str, fields: Mapping[bytes, bytes]) -> Message:
        """A message with these fields. Parses the payload only for the task `tool`."""
        task = codec.decode_text(fields.get(_TASK, b""))
        return cls(entry_id, fields, limit_key_of(task, fields.get(_PAYLOAD, b"")))

    @property
    def job_id(self) -> str:
        """Empty if the message has none."""
        return codec.decode_text(self.fields.get(_JOB_ID, b""))

    @property
    def task(self) -> str:
        return codec.decode_text(self.fields.get(_TASK, b""))

    def without_payload(self) -> Message:
        """Copy without the payload (job id and task only)."""
        small = {name: self.fields[name] for name in (_JOB_ID, _TASK) if name in self.fields}
        return Message(self.id, small, self.limit_key)

    @property
    def payload(self) -> bytes:
        return self.fields.get(_PAYLOAD, b"")


def parse_message(entry: Sequence[Any]) -> Message:
    """Parse a stream entry in a reply of Redis. An entry that was deleted has no fields.

    A read that also claims appends the idle time and the number of deliveries to each entry.
    """
    entry_id, flat = entry[0], entry[1]
    return Message.read(entry_id.decode(), dict(zip(flat[::2], flat[1::2])) if flat else {})


def is_reclaimed(entry: Sequence[Any]) -> bool:
    """True if a read that also claims took this entry over from a worker whose lease expired."""
    return len(entry) > 3 and int(entry[3]) > 0
