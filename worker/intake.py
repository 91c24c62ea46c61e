"""Decides which messages may run: parses them, begins their attempts, settles all others."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from common import codec, crashpoints, logs
from common.contracts.jobs import DeadReason
from common.contracts.scripts import Answer
from common.crashpoints import CrashPoint
from common.errors import CorruptKey, SluiceError, StoreUnavailable
from common.options import NO_OPTIONS, JobOptions
from common.scripts import Record, Reply, unpack
from common.store import Claim, JobStore, Lease, WorkerIdentity
from worker.kinds import kind_of
from worker.limits import TaskLimits
from worker.messages import Message
from worker.tally import Tally
from worker.terms import NO_WISHES, Wishes

log = logging.getLogger(__name__)

#: Added to the rest of a lease, so that it has run out when we come back.
BUSY_MARGIN_S = 0.05
MOST_BUSY = 10_000

Defer = Callable[[str, float], None]
_RUN = Answer.RUN


class Attempt(NamedTuple):
    """The right to run a job now, and what the job asks for."""

    lease: Lease
    task: str
    payload: bytes
    wishes: Wishes = NO_WISHES

    @property
    def kind(self) -> str:
        """What its place is counted by (`worker.kinds`)."""
        return kind_of(self.task, self.payload)


class Intake:
    """Turns a batch of messages into attempts, in one round trip for all of them."""

    def __init__(
        self,
        store: JobStore,
        worker: WorkerIdentity,
        limits: TaskLimits,
        defer: Defer,
        most_attempts: Callable[[str], int | None] = lambda task: None,
        tally: Tally | None = None,
        wait: Callable[[list[Message]], None] = lambda messages: None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._limits = limits
        self._defer = defer
        self._most_attempts = most_attempts
        self._tally = Tally() if tally is None else tally
        #: Where messages go that Redis has no place for.
        self.wait = wait
        self._tokens = _tokens()
        #: Messages whose job ran elsewhere when we came; we come back once.
        self._busy: set[str] = set()

    async def admit(self, messages: list[Message]) -> list[Attempt]:
        """The attempts that are ours to run. Never raises: what is unclear stays pending."""
        try:
            return await self._admit(messages)
        except StoreUnavailable as error:
            log.warning("%d messages stay pending: %s", len(messages), error)
        except Exception:
            log.exception("%d messages stay pending after an unexpected fault", len(messages))
        return []

    async def look(self, messages: list[Message]) -> list[Answer | None]:
        """What BEGIN would say of messages if there were no place for any of them.

        That ends what was canceled or begun too often. LIMITED: it goes on waiting.
        """
        claims: list[Claim] = []
        limited: dict[str, str] = {}
        for message in messages:
            claim = self._claim(message.job_id, message.id, message.task, limited)
            limited.setdefault(claim.token, self._store.keys.running(message.task))
            claims.append(claim._replace(places=0))
        if not claims:
            return []
        answers: list[Answer | None] = []
        outcomes = await self._store.begin(claims, self._worker, limited)
        for message, outcome in zip(messages, outcomes):
            if not isinstance(outcome, Reply):
                log.error("the job cannot begin: %s", outcome, extra=logs.about(message.job_id))
            elif outcome.answer is Answer.EXHAUSTED:
                self._give_up(message, outcome)
            answers.append(outcome.answer if isinstance(outcome, Reply) else None)
        return answers

    def next(self, most: int, after: str, terms: Mapping[str, int | str]) -> tuple[str, Record]:
        """A try to take messages and begin their jobs at once: its token, and what to send.

        What it takes is newer than the message `after`.
        """
        token = next(self._tokens)
        return token, self._store.next(token, most, self._worker, after, terms)

    async def admit_begun(
        self, token: str, messages: Sequence[Message], replies: Sequence[Any]
    ) -> tuple[list[Attempt], list[Message]]:
        """What such a try has brought: attempts that are ours to run, and messages whose jobs it
        left alone. Never raises, either."""
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_BEGIN)
        attempts: list[Attempt] = []
        left_alone: list[Message] = []
        for message, raw in zip(messages, replies):
            try:
                outcome = unpack(raw) if raw else None
                if isinstance(outcome, (Reply, CorruptKey)):
                    claim = Claim(message.job_id, message.id, f"{token}.{message.id}")
                    if isinstance(outcome, Reply) and outcome.answer is _RUN:
                        attempts.append(_attempt(claim, message, message.task, outcome, {}))
                    else:
                        await self._settle(claim, message, outcome)
                else:  # not begun; or Redis is out of memory, say: once more, by itself
                    left_alone.append(message)
            except Exception:
                log.exception("message %s stays pending after an unexpected fault", message.id)
        return attempts, left_alone

    async def _admit(self, messages: list[Message]) -> list[Attempt]:
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_READ)
        claims: list[Claim] = []
        claimed: list[tuple[Message, str]] = []
        limited: dict[str, str] = {}
        for message in messages:
            job_id, task = message.job_id, message.task
            if not job_id:
                await self.put_aside(message, DeadReason.NO_JOB_ID)
                continue
            claims.append(self._claim(job_id, message.id, task, limited))
            claimed.append((message, task))
        if not claims:
            return []
        outcomes = await self._store.begin(claims, self._worker, limited)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_BEGIN)
        attempts: list[Attempt] = []
        for claim, (message, task), outcome in zip(claims, claimed, outcomes):
            if isinstance(outcome, Reply) and outcome.answer is _RUN:
                attempts.append(_attempt(claim, message, task, outcome, limited))
                self._busy.discard(message.id)
            else:
                await self._settle(claim, message, outcome)
        return attempts

    def _claim(self, job_id: str, message_id: str, task: str, limited: dict[str, str]) -> Claim:
        token = next(self._tokens)
        most = self._most_attempts(task)
        across = self._limits.shared_by(task) if self._limits else None
        if across is None:
            return Claim(job_id, message_id, token, "" if most is None else most)
        limited[token], places = across
        return Claim(job_id, message_id, token, "" if most is None else most, places)

    async def _settle(self, claim: Claim, message: Message, outcome: Reply | CorruptKey) -> None:
        """What does not run now: why, and what becomes of it."""
        about = logs.about(claim.job_id)
        if isinstance(outcome, CorruptKey):
            log.error("the job cannot begin: %s", outcome, extra=about)
            await self.put_aside(message, DeadReason.CORRUPT)
        elif outcome.answer is Answer.BUSY:
            self._come_back(claim, message, int(outcome.value or 0) / 1000)
        elif outcome.answer is Answer.WAIT:
            self._defer(message.id, int(outcome.value or 0) / 1000)
        elif outcome.answer is Answer.LIMITED:
            self._limits.refused(message.task, message.id)
            self.wait([message])
        elif outcome.answer is Answer.MISSING:
            await self.put_aside(message, DeadReason.NO_JOB)
        elif outcome.answer is Answer.EXHAUSTED:
            self._give_up(message, outcome)
        else:
            log.info("the job had ended; message %s acknowledged", message.id, extra=about)
        if not isinstance(outcome, Reply) or outcome.answer is not Answer.BUSY:
            self._busy.discard(message.id)

    def _give_up(self, message: Message, outcome: Reply) -> None:
        attempts = int(outcome.value or 0)
        about = logs.about(message.job_id)
        log.error("the job is given up after %s attempts", attempts, extra=about)
        self._tally.given_up(message.task, attempts)

    def _come_back(self, claim: Claim, message: Message, left_s: float) -> None:
        """Another worker holds the job, or held it and died: see when its lease has run out."""
        if message.id in self._busy:  # it was renewed: somebody is alive
            self._busy.discard(message.id)
            about = logs.about(claim.job_id)
            log.info("the job runs elsewhere; message %s left alone", message.id, extra=about)
        else:
            if len(self._busy) >= MOST_BUSY:  # those never came back
                self._busy.clear()
            self._busy.add(message.id)
            self._defer(message.id, left_s + BUSY_MARGIN_S)

    async def put_aside(self, message: Message, reason: DeadReason) -> None:
        """Make a dead letter of a message that no job can be tied to."""
        about = logs.about(message.job_id)
        log.warning("message %s becomes a dead letter: %s", message.id, reason.value, extra=about)
        try:
            group = self._worker.group
            answer = await self._store.dead(message.id, reason, message.fields, group)
        except SluiceError as error:
            log.error("message %s stays pending: %s", message.id, error)
            return
        if answer is not Answer.ALREADY:
            self._tally.put_aside(message.task, expired=answer is Answer.EXPIRED)


def _attempt(
    claim: Claim, message: Message, task: str, outcome: Reply, limited: dict[str, str]
) -> Attempt:
    limited_by = limited.get(claim.token, "") if limited else ""
    lease = Lease(claim.job_id, message.id, int(outcome.value or 0), claim.token, limited_by)
    if not outcome.more:
        return Attempt(lease, task, message.payload)
    most, released, options = outcome.more
    wishes = Wishes(
        codec.integer(most) or None,
        codec.integer(released),
        JobOptions.from_json(options) if options else NO_OPTIONS,
    )
    return Attempt(lease, task, message.payload, wishes)


def _tokens() -> Iterator[str]:
    """Unique names for tries: random per process, then counted."""
    prefix = f"{uuid.uuid4().hex[:12]}-{os.getpid()}-"
    return (f"{prefix}{number}" for number in itertools.count())
