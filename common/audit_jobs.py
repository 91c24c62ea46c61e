"""Reads jobs for the audit: many in one round trip, long event streams page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common import codec
from common.audit_queue import QueueFacts
from common.audit_rules import (
    EventTally,
    JobFacts,
    Lifetimes,
    Surroundings,
    Suspicion,
    needs_a_keeper,
    suspicions,
)
from common.contracts.jobs import JobField, JobKeys, LeaseField
from common.store import read

#: Events read with the job itself; most jobs have no more.
FIRST_EVENTS = 8
#: Events read at once of a longer stream.
EVENTS_PAGE = 200
_ASKED = [JobField.JOB_ID.value, JobField.STATUS.value, JobField.UPDATED_TS.value]
#: One more than there should be: enough to see that a record has too many.
_FIELDS_ASKED = len(JobField) + 1


class Look:
    """One job, looked at once: how it stood, and what seemed wrong."""

    __slots__ = ("mark", "suspicions")

    def __init__(self, facts: JobFacts, found: Sequence[Suspicion]) -> None:
        self.mark = facts.mark
        self.suspicions = {suspicion.rule: suspicion for suspicion in found}


class JobReader:
    """Looks at jobs; writes nothing."""

    def __init__(self, client: Redis, keys: JobKeys, grace_ms: int, pause_s: float) -> None:
        self._client = client
        self._keys = keys
        self._grace_ms = grace_ms
        self._pause_s = pause_s

    async def look(self, job_ids: Sequence[str], queue: QueueFacts) -> dict[str, Look]:
        """What seems wrong with each; a job that is gone is left out."""
        now_ms, found = await self._read(job_ids)
        around = {
            facts.job_id: Surroundings(
                now_ms, self._grace_ms, queue.of(facts.job_id), queue.complete
            )
            for facts in found
        }
        alone = [facts.job_id for facts in found if needs_a_keeper(facts, around[facts.job_id])]
        await self._find_keepers(alone, around)
        return {
            facts.job_id: Look(facts, suspicions(facts, around[facts.job_id])) for facts in found
        }

    async def _read(self, job_ids: Sequence[str]) -> tuple[int, list[JobFacts]]:
        keys = self._keys
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id in job_ids:
                pipe.hmget(keys.job(job_id), _ASKED)
                pipe.hrandfield(keys.job(job_id), _FIELDS_ASKED)  # HKEYS with a limit
                for key in (keys.job(job_id), keys.events(job_id), keys.lease(job_id)):
                    pipe.ttl(key)
                pipe.xrange(keys.events(job_id), "-", "+", count=FIRST_EVENTS)
            (seconds, micros), *replies = await pipe.execute(raise_on_error=False)
        found = []
        per_job = len(replies) // len(job_ids)
        for at, job_id in enumerate(job_ids):
            facts = await self._facts(job_id, replies[at * per_job : (at + 1) * per_job])
            if facts is not None:
                found.append(facts)
        return seconds * 1000 + micros // 1000, found

    async def _facts(self, job_id: str, replies: Sequence[Any]) -> JobFacts | None:
        record, names, *lifetimes, events = (_unless_wrong_type(reply) for reply in replies)
        if not names:  # it has expired since, or is no hash any more
            return None
        job_id_field, status, updated_ts = (value or b"" for value in record)
        return JobFacts(
            job_id=job_id,
            fields=frozenset(names),
            job_id_field=codec.text(job_id_field),
            status=codec.text(status),
            updated_ts=codec.integer(updated_ts),
            lifetimes=Lifetimes(*lifetimes),
            events=await self._tally(job_id, events),
        )

    async def _tally(self, job_id: str, events: Sequence[Any] | None) -> EventTally:
        """Go through all events of a job, of which the first are known."""
        if events is None:
            return EventTally(readable=False)
        tally = EventTally()
        page, wanted = events, FIRST_EVENTS
        while True:
            for entry in page:
                tally.add(*entry)
            if len(page) < wanted:
                return tally
            await asyncio.sleep(self._pause_s)
            wanted = EVENTS_PAGE
            key = self._keys.events(job_id)
            more = await read(self._client.xrange(key, f"({tally.last_id}", "+", count=wanted))
            if more is None:
                return EventTally(readable=False)
            page = more

    async def _find_keepers(self, job_ids: Sequence[str], around: dict[str, Surroundings]) -> None:
        """Ask the schedule and the leases about jobs that the queue does not have in hand."""
        if not job_ids:
            return
        async with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.zscore(self._keys.scheduled, job_id)
                pipe.hget(self._keys.lease(job_id), LeaseField.DEADLINE_MS.value)
            replies = await pipe.execute(raise_on_error=False)
        for job_id, due, deadline in zip(job_ids, replies[::2], replies[1::2]):
            around[job_id] = around[job_id]._replace(
                is_scheduled=_unless_wrong_type(due) is not None,
                lease_deadline_ms=codec.integer(_unless_wrong_type(deadline) or b"0"),
            )


def _unless_wrong_type(reply: Any) -> Any:
    """A reply of a pipeline; None where the key holds something else than it should."""
    if isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply
