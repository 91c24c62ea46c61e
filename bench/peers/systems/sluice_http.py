"""Sluice over HTTP: its Python client and the gateway."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from bench.peers import talk
from bench.peers.systems.sluice_echo import TASK
from sluice.aio.client import AsyncSluice
from sluice.aio.jobs import AsyncJobHandle
from sluice.api import jobs
from sluice.api.jobs import Job
from sluice.api.parsing import model_reader


class Client:
    """Submits jobs and waits for results."""

    def __init__(self, sluice: AsyncSluice) -> None:
        self._sluice = sluice

    async def submit(self) -> AsyncJobHandle:
        return await self._sluice.submit(TASK, talk.PAYLOAD)

    async def result(self, job: AsyncJobHandle) -> Any:
        return await job.result(talk.RESULT_TIMEOUT_S)

    async def run(self) -> Any:
        """Submits and waits in one request with `Prefer: wait`."""
        request: Any = jobs.submit(TASK, talk.PAYLOAD, headers={"Prefer": "wait=30"})
        job: Job = await self._sluice.send(replace(request, read=model_reader(Job)))
        return jobs.result_of(job)


async def main() -> None:
    async with AsyncSluice(os.environ["PEER_GATEWAY_URL"]) as sluice:
        await talk.serve(Client(sluice))


if __name__ == "__main__":
    talk.run(main)
