"""LetterStore: deliveries that were given up, as the gateway lists them and has them sent again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.webhooks import LetterField, RedriveStatus
from common.contracts.workflow import WorkflowOperation
from common.scripts import Argument
from common.store import read
from common.workflow.store import WorkflowStore
from common.workflow.types import Once, Outcome

#: Before the newest.
NEWEST = "+"


class Letter(NamedTuple):
    """A delivery that is given up."""

    event_id: str
    event_type: str
    job_id: str
    url: str
    attempts: int
    #: What became of each, JSON list.
    detail: bytes
    #: As it was sent, byte for byte.
    body: bytes

    def fields(self) -> list[Argument]:
        """As the stream of letters keeps it, beside the time."""
        values: dict[LetterField, Argument] = {
            LetterField.EVENT_ID: self.event_id,
            LetterField.EVENT_TYPE: self.event_type,
            LetterField.JOB_ID: self.job_id,
            LetterField.URL: self.url,
            LetterField.ATTEMPTS: self.attempts,
            LetterField.DETAIL: self.detail,
            LetterField.BODY: self.body,
        }
        return [part for field, value in values.items() for part in (field.value, value)]


class DeadDelivery(NamedTuple):
    """A letter as it was found."""

    id: str
    letter: Letter
    failed_ms: int
    redrive: RedriveStatus = RedriveStatus.NONE
    redrive_ms: int = 0


class LetterStore:
    """Reads by the client, redrives by the workflow script."""

    def __init__(self, client: Redis, workflows: WorkflowStore) -> None:
        self._client = client
        self._workflows = workflows
        self._keys = workflows.keys

    async def letters(self, limit: int, before: str = NEWEST) -> list[DeadDelivery]:
        """Letters older than an id, the newest first."""
        end = before if before == NEWEST else f"({before}"
        entries = await read(self._client.xrevrange(self._keys.dead_deliveries, end, "-", limit))
        found = [_letter(codec.text(entry_id), fields) for entry_id, fields in entries or ()]
        if not found:
            return []
        names = [each.letter.event_id for each in found]
        states = await read(self._client.hmget(self._keys.letters, names))
        return [_redriven(each, state) for each, state in zip(found, states or [None] * len(names))]

    async def count(self) -> int:
        """How many there are."""
        return int(await read(self._client.xlen(self._keys.dead_deliveries)) or 0)

    async def event_ids(self) -> list[str]:
        """The events of all letters."""
        names = await read(self._client.hkeys(self._keys.letters))
        return [codec.text(name) for name in names or ()]

    async def redrive(self, event_ids: Sequence[str], once: Once) -> Outcome:
        """Have letters sent again. OK{redriven, skipped}, MISSING{items}: nothing done; REUSED."""
        args: list[Argument] = [once.fingerprint, once.ttl_s, once.claim_ms]
        args += [os.urandom(8).hex(), *event_ids]
        return await self._workflows.call(WorkflowOperation.REDRIVE_DELIVERY, (once.key,), args)


def _letter(entry_id: str, fields: Mapping[bytes, bytes]) -> DeadDelivery:
    def raw(field: LetterField, default: bytes = b"") -> bytes:
        return fields.get(field.value.encode(), default)

    letter = Letter(
        codec.text(raw(LetterField.EVENT_ID)),
        codec.text(raw(LetterField.EVENT_TYPE)),
        codec.text(raw(LetterField.JOB_ID)),
        codec.text(raw(LetterField.URL)),
        codec.integer(raw(LetterField.ATTEMPTS)),
        raw(LetterField.DETAIL, b"[]"),
        raw(LetterField.BODY),
    )
    return DeadDelivery(entry_id, letter, codec.integer(raw(LetterField.FAILED_MS)))


def _redriven(dead: DeadDelivery, state: Any) -> DeadDelivery:
    """With what is known of its redrive: `id status ms url`."""
    parts = codec.text(state or b"").split(" ")
    if len(parts) != 4 or parts[0] != dead.id:
        return dead
    try:
        status = RedriveStatus(parts[1])
    except ValueError:
        return dead
    return dead._replace(redrive=status, redrive_ms=codec.integer(parts[2].encode()))
