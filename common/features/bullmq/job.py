"""A BullMQ job as stored in its hash, and names in settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.common import codec
from sluice.common.contracts.access import TAIL_DIGITS
from sluice.common.contracts.bullmq import BullField, BullState

#: The end of a tenant's job id. Any UUID has it, too: only the gateway knows the tenants.
_TENANT_MARK = re.compile(rf"-[0-9a-f]{{{TAIL_DIGITS}}}\Z")
_ENDED = frozenset((BullState.COMPLETED, BullState.FAILED))


@dataclass(frozen=True, slots=True)
class BullJob:
    """A BullMQ job; JSON fields are not parsed."""

    queue: str
    job_id: str
    name: str
    state: BullState
    data: bytes
    opts: bytes
    timestamp: int
    delay: int
    priority: int
    progress: bytes
    return_value: bytes
    failed_reason: str | None
    stacktrace: bytes
    attempts_made: int
    attempts_started: int
    stalled: int
    processed_on: int | None
    finished_on: int | None
    processed_by: str | None
    parent_key: str | None

    @property
    def ended(self) -> bool:
        """True if it has ended, unless it is retried."""
        return self.state in _ENDED

    @classmethod
    def from_hash(
        cls, queue: str, job_id: str, state: str, fields: Mapping[bytes, bytes]
    ) -> BullJob:
        """From HGETALL; invalid fields get neutral values."""

        def raw(field: str) -> bytes:
            return fields.get(field.encode(), b"")

        def number(field: str) -> int:
            return codec.parse_int(raw(field))

        def number_if_any(field: str) -> int | None:
            return number(field) if raw(field) else None

        def text_if_any(field: str) -> str | None:
            return codec.decode_text(raw(field)) if raw(field) else None

        try:
            known = BullState(state)
        except ValueError:
            known = BullState.UNKNOWN
        return cls(
            queue=queue,
            job_id=job_id,
            name=codec.decode_text(raw(BullField.NAME)),
            state=known,
            data=raw(BullField.DATA),
            opts=raw(BullField.OPTS),
            timestamp=number(BullField.TIMESTAMP),
            delay=number(BullField.DELAY),
            priority=number(BullField.PRIORITY),
            progress=raw(BullField.PROGRESS),
            return_value=raw(BullField.RETURN_VALUE),
            failed_reason=text_if_any(BullField.FAILED_REASON),
            stacktrace=raw(BullField.STACKTRACE),
            attempts_made=number(BullField.MADE),
            attempts_started=number(BullField.STARTED),
            stalled=number(BullField.STALLED),
            processed_on=number_if_any(BullField.PROCESSED_ON),
            finished_on=number_if_any(BullField.FINISHED_ON),
            processed_by=text_if_any(BullField.PROCESSED_BY),
            parent_key=text_if_any(BullField.PARENT_KEY),
        )


def has_tenant_mark(job_id: str) -> bool:
    """True if the job may be that of a tenant, by its id."""
    return _TENANT_MARK.search(job_id) is not None


_QUEUE = re.compile(r"\A[^:\s,]{1,128}\Z")


def parse_queue_names(value: str) -> list[str]:
    """The queue names in a setting; braces are part of a name."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if not _QUEUE.match(name):
            raise ValueError(f"{name!r} is not a queue name: no colons, spaces or commas")
    return names


def parse_name_map(value: str) -> dict[str, str]:
    """A mapping from job names to handler names."""
    found: dict[str, str] = {}
    for part in (part.strip() for part in value.split(",") if part.strip()):
        name, equals, handler = (piece.strip() for piece in part.partition("="))
        if not (name and equals and handler):
            raise ValueError(f"{part!r} is not of the form name=handler")
        found[name] = handler
    return found
