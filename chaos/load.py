"""Posts every order until it is accepted, cancels some jobs, and records every response."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos import http
from chaos.http import Answer, Unanswered
from chaos.orders import Order

#: Maximum concurrent requests.
MAX_CONCURRENT = 32
_MIN_WAIT_S, _MAX_WAIT_S = 0.1, 0.6
#: Statuses after which the request is repeated.
_RETRIED = (429, 500, 503)
_SERVER_ERROR = 500


@dataclass
class Posted:
    """An order and all responses to it."""

    order: Order
    first_sent_ms: int = 0
    accepted_ms: int = 0
    #: Job ids in the order of the responses; more than one is a violation.
    job_ids: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    #: Unexpected responses.
    faults: list[str] = field(default_factory=list)
    cancel_sent_ms: int = 0
    #: Status in the response to the cancel request; empty if there was none yet.
    cancel_answer: str = ""

    @property
    def accepted(self) -> bool:
        return bool(self.job_ids)

    @property
    def job_id(self) -> str:
        return self.job_ids[0]


class Load:
    """All clients of a run except those that watch events."""

    def __init__(
        self,
        orders: Sequence[Order],
        gateways: Sequence[int],
        on_accepted: Callable[[Posted], None],
    ) -> None:
        self._orders = orders
        self._gateways = gateways
        self._on_accepted = on_accepted
        self._concurrency = asyncio.Semaphore(MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()
        self.posted: list[Posted] = []

    @property
    def accepted(self) -> int:
        return sum(posted.accepted for posted in self.posted)

    @property
    def idle(self) -> bool:
        """True if every request has been sent and answered."""
        return len(self.posted) == len(self._orders) and not self._tasks

    async def run(self) -> None:
        """Posts each order at its time; returns when all requests have been answered."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        for order in self._orders:
            await asyncio.sleep(max(0.0, started + order.at_s - loop.time()))
            posted = Posted(order)
            self.posted.append(posted)
            self._start(self._post(posted))
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, posted: Posted) -> None:
        order = posted.order
        posted.first_sent_ms = _now_ms()
        answer = await self._request(posted, "POST", "/v1/jobs", order.body, 202)
        if answer is None:
            return
        posted.accepted_ms = _now_ms()
        posted.job_ids.append(answer.json()["job_id"])
        self._on_accepted(posted)
        if order.repeated:
            self._start(self._repeat(posted))
        if order.cancel_after_s is not None:
            self._start(self._cancel(posted, order.cancel_after_s))

    async def _repeat(self, posted: Posted) -> None:
        """Repeats the request, like a client that did not receive the response."""
        await asyncio.sleep(random.uniform(0.0, 2.0))
        answer = await self._request(posted, "POST", "/v1/jobs", posted.order.body, 202)
        if answer is not None and answer.json()["job_id"] != posted.job_id:
            posted.job_ids.append(answer.json()["job_id"])

    async def _cancel(self, posted: Posted, after_s: float) -> None:
        await asyncio.sleep(after_s)
        posted.cancel_sent_ms = _now_ms()
        target = f"/v1/jobs/{posted.job_id}/cancel"
        answer = await self._request(posted, "POST", target, {"reason": "chaos"}, 200, 202)
        if answer is not None:
            posted.cancel_answer = answer.json()["status"]

    async def _request(
        self, posted: Posted, method: str, target: str, body: object, *expected: int
    ) -> Answer | None:
        """Repeats a request to any gateway until it gets a final response; None if that is
        unexpected.
        """
        headers = {"Idempotency-Key": f"order-{posted.order.number}"}
        while True:
            try:
                async with self._concurrency:
                    port = random.choice(self._gateways)
                    answer = await http.request(port, method, target, body, headers)
            except Unanswered as error:
                posted.answers[str(error).partition("(")[0]] += 1
            else:
                posted.answers[str(answer.status)] += 1
                if answer.status in expected:
                    return answer
                if answer.status == _SERVER_ERROR or answer.status not in _RETRIED:
                    text = answer.body.decode(errors="replace")[:300]
                    posted.faults.append(f"{method} {target} got {answer.status}: {text}")
                if answer.status not in _RETRIED:
                    return None
            await asyncio.sleep(random.uniform(_MIN_WAIT_S, _MAX_WAIT_S))


def _now_ms() -> int:
    return int(time.time() * 1000)
