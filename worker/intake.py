"""Decides which messages may run: parses them, begins their attempts, settles all others."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from common import codec
from common.contracts.jobs import DeadReason, QueueField
from common.contracts.scripts import Answer
from common.errors import CorruptKey, SluiceError, StoreUnavailable
from common.scripts import Reply
from common.store import Claim, JobStore, Lease, WorkerIdentity

log = logging.getLogger(__name__)

_JOB_ID = QueueField.JOB_ID.value.encode()
_TASK = QueueField.TASK.value.encode()
_PAYLOAD = QueueField.PAYLOAD.value.encode()


class Message(NamedTuple):
    """A queue message as read, in bytes: a foreign producer may have written anything."""

    id: str
    fields: Mapping[bytes, bytes]


class Attempt(NamedTuple):
    """The right to run a job now, and what the job asks for."""

    lease: Lease
    task: str
    payload: bytes


class Intake:
    """Turns a batch of messages into attempts, in one round trip for all of them."""

    def __init__(self, store: JobStore, worker: WorkerIdentity) -> None:
        self._store = store
        self._worker = worker
        self._tokens = _tokens()

    async def admit(self, messages: list[Message]) -> list[Attempt]:
        """The attempts that are ours to run. Never raises: what is unclear stays pending."""
        try:
            return await self._admit(messages)
        except StoreUnavailable as error:
            log.warning("%d messages stay pending: %s", len(messages), error)
        except Exception:
            log.exception("%d messages stay pending after an unexpected fault", len(messages))
        return []

    async def _admit(self, messages: list[Message]) -> list[Attempt]:
        claims: list[Claim] = []
        claimed: list[Message] = []
        for message in messages:
            job_id = codec.text(message.fields.get(_JOB_ID, b""))
            if job_id:
                claims.append(Claim(job_id, message.id, next(self._tokens)))
                claimed.append(message)
            else:
                await self._put_aside(message, DeadReason.NO_JOB_ID)
        if not claims:
            return []
        outcomes = await self._store.begin(claims, self._worker)
        attempts: list[Attempt] = []
        for claim, message, outcome in zip(claims, claimed, outcomes):
            attempt = await self._settle(claim, message, outcome)
            if attempt is not None:
                attempts.append(attempt)
        return attempts

    async def _settle(
        self, claim: Claim, message: Message, outcome: Reply | CorruptKey
    ) -> Attempt | None:
        if isinstance(outcome, CorruptKey):
            log.error("job %s cannot begin: %s", claim.job_id, outcome)
            await self._put_aside(message, DeadReason.CORRUPT)
        elif outcome.answer is Answer.RUN:
            lease = Lease(claim.job_id, message.id, int(outcome.value or 0), claim.token)
            task = codec.text(message.fields.get(_TASK, b""))
            return Attempt(lease, task, message.fields.get(_PAYLOAD, b""))
        elif outcome.answer is Answer.MISSING:
            await self._put_aside(message, DeadReason.NO_JOB)
        elif outcome.answer is Answer.EXHAUSTED:
            log.error("job %s is given up after %s attempts", claim.job_id, int(outcome.value or 0))
        elif outcome.answer is Answer.BUSY:
            log.info("job %s runs elsewhere; message %s left alone", claim.job_id, message.id)
        else:
            log.info("job %s had ended; message %s acknowledged", claim.job_id, message.id)
        return None

    async def _put_aside(self, message: Message, reason: DeadReason) -> None:
        log.warning("message %s becomes a dead letter: %s", message.id, reason.value)
        try:
            await self._store.dead(message.id, reason, message.fields, self._worker.group)
        except SluiceError as error:
            log.error("message %s stays pending: %s", message.id, error)


def _tokens() -> Iterator[str]:
    """Unique names for tries: random per process, then counted."""
    prefix = f"{uuid.uuid4().hex[:12]}-{os.getpid()}-"
    return (f"{prefix}{number}" for number in itertools.count())
