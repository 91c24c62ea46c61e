"""Sluice as it is meant to be used: its Python client, HTTP, the gateway."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from bench.peers import talk
from bench.peers.systems.sluice_echo import TASK
from client.aio.client import AsyncSluice
from client.aio.job import AsyncJobHandle
from client.core import jobs_api
from client.core.models import Job
from client.core.reading import reading


class Client:
    """Hands in jobs and waits."""

    def __init__(self, sluice: AsyncSluice) -> None:
        self._sluice = sluice

    async def submit(self) -> AsyncJobHandle:
        """One job."""
        return await self._sluice.submit(TASK, talk.PAYLOAD)

    async def result(self, job: AsyncJobHandle) -> Any:
        """Its result."""
        return await job.result(talk.RESULT_TIMEOUT_S)

    async def run(self) -> Any:
        """Both in one request: `Prefer: wait`."""
        asked: Any = jobs_api.submit(TASK, talk.PAYLOAD, headers={"Prefer": "wait=30"})
        job: Job = await self._sluice.run(replace(asked, read=reading(Job)))
        return jobs_api.outcome(job)


async def main() -> None:
    """The client."""
    async with AsyncSluice(os.environ["PEER_GATEWAY_URL"]) as sluice:
        await talk.serve(Client(sluice))


if __name__ == "__main__":
    talk.run(main)
