"""FETCH_AND_BEGIN in a random history: messages that are read and begun in one call."""

from __future__ import annotations

from typing import Any

from common.contracts.queue import DO_NOT_BEGIN, Answer
from common.jobs.store import Lease
from common.redis.scripts import Record, Reply, unpack
from tests.common.history import KEYS, LIMITED_TASK
from tests.common.operations import Steps


class BusySteps(Steps):
    """The same operations, and those of fully loaded workers."""

    def take_next(self, consumer: str, count: int, twice: bool) -> None:
        """Read and begin in one call; messages of the limited task are only read."""
        group = next(each for each in self.client.xinfo_groups(KEYS.queue))
        last = group["last-delivered-id"].decode()
        coming = self.client.xrange(KEYS.queue, f"({last}", count=count)
        jobs = {fields[b"job_id"].decode() for _, fields in coming}
        before = {job_id: self.traces(job_id) for job_id in jobs}
        token = self.next("t")
        args = [token, count, KEYS.job(""), "", LIMITED_TASK, DO_NOT_BEGIN]
        repeated = [*args[:3], f"({last}", *args[4:]]
        reply = self.one(Record("fetch_and_begin", [], args, self.identity(consumer)))
        entries: Any = reply.value
        assert [entry[0] for entry in entries] == [entry_id for entry_id, _ in coming]
        added, begun = dict.fromkeys(jobs, 0), []
        for (entry_id, fields), raw in zip(coming, reply.more):
            message_id, job_id = entry_id.decode(), fields[b"job_id"].decode()
            self.messages.insert(0, (message_id, job_id))
            if self.models[job_id].limited:
                assert raw == []
                continue
            expected, outcome = self.expected(job_id), unpack(raw)
            assert isinstance(outcome, Reply)
            assert outcome.answer is expected
            lease = Lease(job_id, message_id, 0, f"{token}.{message_id}")
            added[job_id] += self.came_of_begin(lease, outcome, expected)
            if expected is Answer.RUN:
                begun.append([entry_id, raw[1]])
        after = {job_id: self.traces(job_id) for job_id in jobs}
        for job_id in jobs:
            assert len(after[job_id][1]) - len(before[job_id][1]) == added[job_id]
            assert added[job_id] or after[job_id] == before[job_id]
        if twice and begun:  # the reply was lost
            again = self.one(Record("fetch_and_begin", [], repeated, self.identity(consumer)))
            found: Any = again.value
            assert [[entry[0], b"%d" % int(raw[1])] for entry, raw in zip(found, again.more)] == [
                [entry_id, b"%d" % int(attempt)] for entry_id, attempt in begun
            ]
            assert {raw[0] for raw in again.more} == {b"run"}
            assert {job_id: self.traces(job_id)[:2] for job_id in jobs} == {
                job_id: traces[:2] for job_id, traces in after.items()
            }
