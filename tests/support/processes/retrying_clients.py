"""Clients that keep a gateway busy while its Redis has problems, and record acknowledged jobs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

CLIENTS = 6


class Acceptance(NamedTuple):
    """Send time, response time and job id of an accepted request."""

    sent: float
    at: float
    job_id: str


@dataclass
class RetryingClients:
    """Each client repeats a request with its key until it is accepted."""

    client: httpx.AsyncClient
    name: str
    payload: dict[str, Any]
    #: Pause between two requests of a client.
    pause_s: float
    #: How long a request may be refused.
    retry_for_s: float
    #: Acknowledged job by Idempotency-Key.
    acknowledged: dict[str, str] = field(default_factory=dict)
    accepted: list[Acceptance] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    over: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RetryingClients]:
        """The clients send requests within the block."""
        clients = asyncio.gather(*(self._client(number) for number in range(CLIENTS)))
        try:
            yield self
        finally:
            self.over = True
            await asyncio.wait_for(clients, self.retry_for_s)

    async def recovered(self, since: float, count: int = CLIENTS) -> float:
        """Seconds until this many requests, sent after `since`, were accepted."""
        deadline = time.monotonic() + self.retry_for_s
        while True:
            later = sorted(each.at for each in self.accepted if each.sent > since)
            if len(later) >= count:
                return later[count - 1] - since
            assert time.monotonic() < deadline, f"nothing accepted; refused: {self.refused}"
            await asyncio.sleep(0.02)

    async def _client(self, number: int) -> None:
        turn = 0
        while not self.over:
            turn += 1
            await self._until_accepted(f"{self.name}-{number}-{turn}")
            await asyncio.sleep(self.pause_s)

    async def _until_accepted(self, key: str) -> None:
        body = {"task": "chat", "payload": self.payload}
        deadline = time.monotonic() + self.retry_for_s
        while True:
            sent = time.monotonic()
            answer = await self.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
            if answer.status_code == 202:
                job_id = answer.json()["job_id"]
                self.accepted.append(Acceptance(sent, time.monotonic(), job_id))
                self.acknowledged[key] = job_id
                return
            assert answer.status_code == 503, answer.text
            assert "Retry-After" in answer.headers
            self.refused[answer.json()["code"]] += 1
            assert time.monotonic() < deadline, f"refused for too long: {self.refused}"
            await asyncio.sleep(self.pause_s)
