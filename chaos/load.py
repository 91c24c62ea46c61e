"""Posts every order until it is accepted, cancels some, and keeps count of every answer."""

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

#: Requests under way at once.
MOST_AT_ONCE = 32
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.1, 0.6
#: Answers after which the same request is sent again.
_AGAIN = (429, 500, 503)
_OURS_TO_BLAME = 500


@dataclass
class Posted:
    """An order and everything that was answered to it."""

    order: Order
    first_sent_ms: int = 0
    accepted_ms: int = 0
    #: In the order they were named; more than one would be a broken promise.
    job_ids: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    #: Answers that must not be.
    faults: list[str] = field(default_factory=list)
    cancel_sent_ms: int = 0
    #: The status that the gateway answered to the wish to cancel; empty while it is unanswered.
    cancel_answer: str = ""

    @property
    def accepted(self) -> bool:
        """Whether it got its 2xx."""
        return bool(self.job_ids)

    @property
    def job_id(self) -> str:
        """The job that was made of it."""
        return self.job_ids[0]


class Load:
    """All clients of a run, but for those who watch."""

    def __init__(
        self,
        orders: Sequence[Order],
        gateways: Sequence[int],
        on_accepted: Callable[[Posted], None],
    ) -> None:
        self._orders = orders
        self._gateways = gateways
        self._on_accepted = on_accepted
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self.posted: list[Posted] = []

    @property
    def accepted(self) -> int:
        """How many orders have become jobs."""
        return sum(posted.accepted for posted in self.posted)

    @property
    def idle(self) -> bool:
        """Whether everything was asked and answered."""
        return len(self.posted) == len(self._orders) and not self._tasks

    async def run(self) -> None:
        """Post each order when its time has come; returns when all have been answered."""
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
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, posted: Posted) -> None:
        order = posted.order
        posted.first_sent_ms = _now_ms()
        answer = await self._insist(posted, "POST", "/v1/jobs", order.body, 202)
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
        """A client that did not hear the answer would do the same."""
        await asyncio.sleep(random.uniform(0.0, 2.0))
        answer = await self._insist(posted, "POST", "/v1/jobs", posted.order.body, 202)
        if answer is not None and answer.json()["job_id"] != posted.job_id:
            posted.job_ids.append(answer.json()["job_id"])

    async def _cancel(self, posted: Posted, after_s: float) -> None:
        await asyncio.sleep(after_s)
        posted.cancel_sent_ms = _now_ms()
        target = f"/v1/jobs/{posted.job_id}/cancel"
        answer = await self._insist(posted, "POST", target, {"reason": "chaos"}, 200, 202)
        if answer is not None:
            posted.cancel_answer = answer.json()["status"]

    async def _insist(
        self, posted: Posted, method: str, target: str, body: object, *wanted: int
    ) -> Answer | None:
        """Ask, whomever, until there is an answer that is one; None where it is a wrong one."""
        headers = {"Idempotency-Key": f"order-{posted.order.number}"}
        while True:
            try:
                async with self._turns:
                    port = random.choice(self._gateways)
                    answer = await http.request(port, method, target, body, headers)
            except Unanswered as error:
                posted.answers[str(error).partition("(")[0]] += 1
            else:
                posted.answers[str(answer.status)] += 1
                if answer.status in wanted:
                    return answer
                if answer.status == _OURS_TO_BLAME or answer.status not in _AGAIN:
                    said = answer.body.decode(errors="replace")[:300]
                    posted.faults.append(f"{method} {target} got {answer.status}: {said}")
                if answer.status not in _AGAIN:
                    return None
            await asyncio.sleep(random.uniform(_SHORTEST_WAIT_S, _LONGEST_WAIT_S))


def _now_ms() -> int:
    return int(time.time() * 1000)
