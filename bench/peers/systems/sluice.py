"""Sluice's store as a client, without a gateway.

Like the clients of the other systems it connects directly to Redis. It waits for the last event of
the job.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from bench.peers import talk
from bench.peers.systems.sluice_echo import TASK
from sluice.common.contracts.jobs import WORKER_GROUP, EventField, JobField, JobKeys, Status
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, NewJob
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.connection import async_client
from sluice.common.redis.pipelined import PipelinedConnection

TTL_S = 86_400
MAX_BACKLOG = 1_000_000_000
_BODY = json.dumps(talk.PAYLOAD, separators=(",", ":")).encode()
_TYPE, _RESULT = EventField.TYPE.encode(), JobField.RESULT
_LAST = {Status.DONE.value.encode(), Status.ERROR.value.encode(), Status.CANCELED.value.encode()}


class Client:
    """Submits jobs and waits for results."""

    def __init__(self, url: str) -> None:
        self._keys = JobKeys()
        self._reads = async_client(url, connections=talk.CHECKERS)
        self._store = JobStore(
            self._reads,
            self._keys,
            ScriptBatcher(PipelinedConnection(url), self._keys, CORE_SCRIPT),
        )
        self._waits = PipelinedConnection(url, block_s=talk.RESULT_TIMEOUT_S)

    async def submit(self) -> str:
        job = NewJob(str(uuid.uuid4()), TASK, _BODY, TTL_S)
        return (await self._store.enqueue(job, WORKER_GROUP, MAX_BACKLOG)).job_id

    async def result(self, job_id: str) -> Any:
        job = await self._store.get(job_id)
        return None if job is None else json.loads(job.result)

    async def run(self) -> Any:
        """Submits, reads the job's events to the last one, and fetches the result."""
        job_id = await self.submit()
        events, last_id = self._keys.events(job_id), b"0"
        while True:
            found = await self._waits.execute_command(
                "XREAD", "BLOCK", talk.RESULT_TIMEOUT_S * 1000, "STREAMS", events, last_id
            )
            last_id = found[0][1][-1][0]
            for _, fields in found[0][1]:
                if fields[fields.index(_TYPE) + 1] in _LAST:
                    stored = await self._waits.execute_command(
                        "HGET", self._keys.job(job_id), _RESULT
                    )
                    return json.loads(stored)


async def main() -> None:
    await talk.serve(Client(talk.redis_url()))


if __name__ == "__main__":
    talk.run(main)
