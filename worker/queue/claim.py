"""Begins the attempts of messages, and settles the messages whose jobs may not run."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sluice.common import codec
from sluice.common.contracts.jobs import DeadReason
from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey, SluiceError, StoreUnavailable
from sluice.common.jobs.options import NO_OPTIONS, JobOptions
from sluice.common.jobs.store import Claim, JobStore, Lease, WorkerIdentity
from sluice.common.observability import logs
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.scripts import Record, Reply, unpack
from sluice.common.text import plural
from sluice.worker.execution.outcome import NO_REQUEST_OPTIONS, RequestOptions
from sluice.worker.monitoring.counters import Counters
from sluice.worker.queue.limits import TaskLimits
from sluice.worker.queue.messages import Message

log = logging.getLogger(__name__)

#: Seconds added to the remaining time of another worker's lease before the recheck, so that the
#: lease has expired by then.
BUSY_MARGIN_S = 0.05
#: How many messages with a running job are remembered for one recheck.
MOST_BUSY = 10_000

DeferFunction = Callable[[str, float], None]
_RUN = Answer.RUN


class ClaimedJob(NamedTuple):
    """An attempt that has begun in Redis, and that this worker has to run."""

    lease: Lease
    task: str
    #: What its slots are counted by (`sluice.worker.queue.messages`).
    limit_key: str
    payload: bytes
    request: RequestOptions = NO_REQUEST_OPTIONS


class Claimer:
    """Turns a batch of messages into attempts in one round trip."""

    def __init__(
        self,
        store: JobStore,
        worker: WorkerIdentity,
        limits: TaskLimits,
        defer: DeferFunction,
        most_attempts: Callable[[str], int | None] = lambda task: None,
        counters: Counters | None = None,
        on_limited: Callable[[list[Message]], None] = lambda messages: None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._limits = limits
        self._defer = defer
        self._most_attempts = most_attempts
        self._counters = Counters() if counters is None else counters
        self._on_limited = on_limited
        self._tokens = _token_sequence()
        #: Messages whose job was leased by another worker; each is rechecked once.
        self._busy: set[str] = set()

    async def claim(self, messages: list[Message]) -> list[ClaimedJob]:
        """Begin attempts; returns those that this worker has to run.

        Never raises: a message whose outcome is unknown stays pending.
        """
        try:
            return await self._claim_all(messages)
        except StoreUnavailable as error:
            stay = plural(len(messages), "message stays", "messages stay")
            log.warning("%s pending: %s", stay, error)
        except Exception:
            stay = plural(len(messages), "message stays", "messages stay")
            log.exception("%s pending after an unexpected error", stay)
        return []

    async def check(self, messages: list[Message]) -> list[Answer | None]:
        """Run BEGIN with a limit of 0 running jobs, which starts no job.

        It settles the jobs that were canceled or have no attempts left. LIMITED means that the
        message keeps waiting. None is a message whose job cannot be read.
        """
        claims: list[Claim] = []
        limited: dict[str, str] = {}
        for message in messages:
            claim = self._new_claim(message.job_id, message.id, message.task, limited)
            limited.setdefault(claim.token, self._store.keys.running(message.task))
            claims.append(claim._replace(max_running=0))
        if not claims:
            return []
        answers: list[Answer | None] = []
        outcomes = await self._store.begin(claims, self._worker, limited)
        for message, outcome in zip(messages, outcomes):
            if not isinstance(outcome, Reply):
                log.error("job cannot begin: %s", outcome, extra=logs.job_extra(message.job_id))
            elif outcome.answer is Answer.EXHAUSTED:
                self._record_exhausted(message, outcome)
            answers.append(outcome.answer if isinstance(outcome, Reply) else None)
        return answers

    def fetch_record(
        self, most: int, after: str, options_by_task: Mapping[str, int | str]
    ) -> tuple[str, Record]:
        """A record that takes messages newer than `after` and begins their jobs, and its token."""
        token = next(self._tokens)
        return token, self._store.fetch_record(token, most, self._worker, after, options_by_task)

    async def accept_prefetched(
        self, token: str, messages: Sequence[Message], replies: Sequence[Any]
    ) -> tuple[list[ClaimedJob], list[Message]]:
        """Parse the reply to a `fetch_record`: returns the attempts to run, and the messages whose
        attempts have not begun. Never raises."""
        crashpoints.reach(CrashPoint.AFTER_BEGIN)
        jobs: list[ClaimedJob] = []
        not_begun: list[Message] = []
        for message, raw in zip(messages, replies):
            try:
                outcome = unpack(raw) if raw else None
                if isinstance(outcome, (Reply, CorruptKey)):
                    claim = Claim(message.job_id, message.id, f"{token}.{message.id}")
                    if isinstance(outcome, Reply) and outcome.answer is _RUN:
                        jobs.append(_to_claimed_job(claim, message, message.task, outcome, {}))
                    else:
                        await self._resolve(claim, message, outcome)
                else:  # not begun, or Redis was out of memory: claimed the usual way
                    not_begun.append(message)
            except Exception:
                log.exception("message %s stays pending after an unexpected error", message.id)
        return jobs, not_begun

    async def _claim_all(self, messages: list[Message]) -> list[ClaimedJob]:
        crashpoints.reach(CrashPoint.AFTER_READ)
        claims: list[Claim] = []
        claimed: list[tuple[Message, str]] = []
        limited: dict[str, str] = {}
        for message in messages:
            job_id, task = message.job_id, message.task
            if not job_id:
                await self.dead_letter(message, DeadReason.NO_JOB_ID)
                continue
            claims.append(self._new_claim(job_id, message.id, task, limited))
            claimed.append((message, task))
        if not claims:
            return []
        outcomes = await self._store.begin(claims, self._worker, limited)
        crashpoints.reach(CrashPoint.AFTER_BEGIN)
        jobs: list[ClaimedJob] = []
        for claim, (message, task), outcome in zip(claims, claimed, outcomes):
            if isinstance(outcome, Reply) and outcome.answer is _RUN:
                jobs.append(_to_claimed_job(claim, message, task, outcome, limited))
                self._busy.discard(message.id)
            else:
                await self._resolve(claim, message, outcome)
        return jobs

    def _new_claim(self, job_id: str, message_id: str, task: str, limited: dict[str, str]) -> Claim:
        token = next(self._tokens)
        most = self._most_attempts(task)
        global_limit = self._limits.global_limit(task) if self._limits else None
        if global_limit is None:
            return Claim(job_id, message_id, token, "" if most is None else most)
        limited[token], slots = global_limit
        return Claim(job_id, message_id, token, "" if most is None else most, slots)

    async def _resolve(self, claim: Claim, message: Message, outcome: Reply | CorruptKey) -> None:
        """Settle a message whose job does not run now."""
        about = logs.job_extra(claim.job_id)
        if isinstance(outcome, CorruptKey):
            log.error("job cannot begin: %s", outcome, extra=about)
            await self.dead_letter(message, DeadReason.CORRUPT)
        elif outcome.answer is Answer.BUSY:
            self._recheck_later(claim, message, int(outcome.value or 0) / 1000)
        elif outcome.answer is Answer.WAIT:
            self._defer(message.id, int(outcome.value or 0) / 1000)
        elif outcome.answer is Answer.LIMITED:
            self._limits.on_refused(message.task, message.id)
            self._on_limited([message])
        elif outcome.answer is Answer.MISSING:
            await self.dead_letter(message, DeadReason.NO_JOB)
        elif outcome.answer is Answer.EXHAUSTED:
            self._record_exhausted(message, outcome)
        else:
            log.info("job had already ended; message %s acknowledged", message.id, extra=about)
        if not isinstance(outcome, Reply) or outcome.answer is not Answer.BUSY:
            self._busy.discard(message.id)

    def _record_exhausted(self, message: Message, outcome: Reply) -> None:
        attempts = int(outcome.value or 0)
        about = logs.job_extra(message.job_id)
        log.error("job dead-lettered after attempt %d", attempts, extra=about)
        self._counters.record_exhausted(message.task, attempts)

    def _recheck_later(self, claim: Claim, message: Message, left_s: float) -> None:
        """Another worker holds the lease, or held it and died: check again when it has expired."""
        if message.id in self._busy:  # the lease was renewed: that worker is alive
            self._busy.discard(message.id)
            about = logs.job_extra(claim.job_id)
            log.info("job runs in another worker; message %s skipped", message.id, extra=about)
        else:
            if len(self._busy) >= MOST_BUSY:  # messages that were never rechecked
                self._busy.clear()
            self._busy.add(message.id)
            self._defer(message.id, left_s + BUSY_MARGIN_S)

    async def dead_letter(self, message: Message, reason: DeadReason) -> None:
        """Move a message to the dead letters because it has no job that could run."""
        about = logs.job_extra(message.job_id)
        log.warning("message %s dead-lettered: %s", message.id, reason.value, extra=about)
        try:
            group = self._worker.group
            answer = await self._store.dead_letter(message.id, reason, message.fields, group)
        except SluiceError as error:
            log.error("message %s stays pending: %s", message.id, error)
            return
        if answer is not Answer.ALREADY:
            self._counters.record_dead_letter(message.task, expired=answer is Answer.EXPIRED)


def _to_claimed_job(
    claim: Claim, message: Message, task: str, outcome: Reply, limited: dict[str, str]
) -> ClaimedJob:
    limited_by = limited.get(claim.token, "") if limited else ""
    lease = Lease(claim.job_id, message.id, int(outcome.value or 0), claim.token, limited_by)
    if not outcome.more:
        return ClaimedJob(lease, task, message.limit_key, message.payload)
    most, released, options = outcome.more
    request = RequestOptions(
        codec.parse_int(most) or None,
        codec.parse_int(released),
        JobOptions.from_json(options) if options else NO_OPTIONS,
    )
    return ClaimedJob(lease, task, message.limit_key, message.payload, request)


def _token_sequence() -> Iterator[str]:
    """Unique tokens: random per process, then a counter."""
    prefix = f"{uuid.uuid4().hex[:12]}-{os.getpid()}-"
    return (f"{prefix}{number}" for number in itertools.count())
