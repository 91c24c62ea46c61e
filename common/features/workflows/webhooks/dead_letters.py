"""WebhookDeadLetterStore: lists and redrives dead-lettered webhook deliveries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.webhooks import RedriveStatus, WebhookDeadLetterField
from sluice.common.contracts.workflow.operations import WorkflowOperation
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import IdempotencyClaim, WorkflowOutcome
from sluice.common.jobs.store import read_reply
from sluice.common.redis.scripts import Argument

#: Cursor before the newest one.
NEWEST = "+"


class WebhookDeadLetter(NamedTuple):
    """A dead-lettered delivery."""

    event_id: str
    event_type: str
    job_id: str
    url: str
    attempts: int
    #: Results of its attempts, JSON list.
    detail: bytes
    #: Exactly as it was sent.
    body: bytes

    def fields(self) -> list[Argument]:
        """As stored in the dead-letter stream, without the time."""
        values: dict[str, Argument] = {
            WebhookDeadLetterField.EVENT_ID: self.event_id,
            WebhookDeadLetterField.EVENT_TYPE: self.event_type,
            WebhookDeadLetterField.JOB_ID: self.job_id,
            WebhookDeadLetterField.URL: self.url,
            WebhookDeadLetterField.ATTEMPTS: self.attempts,
            WebhookDeadLetterField.DETAIL: self.detail,
            WebhookDeadLetterField.BODY: self.body,
        }
        return [part for field, value in values.items() for part in (field, value)]


class StoredWebhookDeadLetter(NamedTuple):
    """A dead letter read from the stream."""

    id: str
    dead_letter: WebhookDeadLetter
    failed_ms: int
    redrive: RedriveStatus = RedriveStatus.NONE
    redrive_ms: int = 0


class WebhookDeadLetterStore:
    """Reads dead letters directly, and redrives them by the workflow script."""

    def __init__(self, client: Redis, workflows: WorkflowStore) -> None:
        self._client = client
        self._workflows = workflows
        self._keys = workflows.keys

    async def list_dead_letters(
        self, limit: int, before: str = NEWEST
    ) -> list[StoredWebhookDeadLetter]:
        """Dead letters older than an id, newest first."""
        end = before if before == NEWEST else f"({before}"
        entries = await read_reply(self._client.xrevrange(self._keys.dead_letters, end, "-", limit))
        found = [
            _parse_dead_letter(codec.decode_text(entry_id), fields)
            for entry_id, fields in entries or ()
        ]
        if not found:
            return []
        names = [each.dead_letter.event_id for each in found]
        states = await read_reply(self._client.hmget(self._keys.dead_letter_states, names))
        return [
            _with_redrive(each, state) for each, state in zip(found, states or [None] * len(names))
        ]

    async def count(self) -> int:
        return int(await read_reply(self._client.xlen(self._keys.dead_letters)) or 0)

    async def event_ids(self) -> list[str]:
        names = await read_reply(self._client.hkeys(self._keys.dead_letter_states))
        return [codec.decode_text(name) for name in names or ()]

    async def redrive(self, event_ids: Sequence[str], once: IdempotencyClaim) -> WorkflowOutcome:
        """Redrive dead letters. OK{redriven, skipped}, MISSING{items} (nothing done) or REUSED."""
        args: list[Argument] = [once.fingerprint, once.ttl_s, once.claim_ms]
        args += [os.urandom(8).hex(), *event_ids]
        return await self._workflows.call(WorkflowOperation.REDRIVE_DELIVERY, (once.key,), args)


def _parse_dead_letter(entry_id: str, fields: Mapping[bytes, bytes]) -> StoredWebhookDeadLetter:
    def raw(field: str, default: bytes = b"") -> bytes:
        return fields.get(field.encode(), default)

    letter = WebhookDeadLetter(
        codec.decode_text(raw(WebhookDeadLetterField.EVENT_ID)),
        codec.decode_text(raw(WebhookDeadLetterField.EVENT_TYPE)),
        codec.decode_text(raw(WebhookDeadLetterField.JOB_ID)),
        codec.decode_text(raw(WebhookDeadLetterField.URL)),
        codec.parse_int(raw(WebhookDeadLetterField.ATTEMPTS)),
        raw(WebhookDeadLetterField.DETAIL, b"[]"),
        raw(WebhookDeadLetterField.BODY),
    )
    return StoredWebhookDeadLetter(
        entry_id, letter, codec.parse_int(raw(WebhookDeadLetterField.FAILED_MS))
    )


def _with_redrive(dead: StoredWebhookDeadLetter, state: Any) -> StoredWebhookDeadLetter:
    """Add its redrive state, stored as `id status ms url`."""
    parts = codec.decode_text(state or b"").split(" ")
    if len(parts) != 4 or parts[0] != dead.id:
        return dead
    try:
        status = RedriveStatus(parts[1])
    except ValueError:
        return dead
    return dead._replace(redrive=status, redrive_ms=codec.parse_int(parts[2].encode()))
