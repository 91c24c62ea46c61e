"""The semaphore and the circuit breaker of the model."""

from __future__ import annotations

import asyncio

from common.aio import cancel
from worker.features.model.availability import (
    FAILURE_THRESHOLD,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    CircuitBreaker,
    ResizableSemaphore,
)


class Holder:
    """A task that holds the semaphore until released."""

    def __init__(self, semaphore: ResizableSemaphore) -> None:
        self.inside = False
        self._bye = asyncio.Event()
        self.task = asyncio.ensure_future(self._stay(semaphore))

    async def _stay(self, semaphore: ResizableSemaphore) -> None:
        async with semaphore:
            self.inside = True
            await self._bye.wait()
        self.inside = False

    async def leave(self) -> None:
        self._bye.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def holders(semaphore: ResizableSemaphore, number: int) -> list[Holder]:
    found = [Holder(semaphore) for _ in range(number)]
    await settle()
    return found


async def test_waiters_enter_in_order() -> None:
    semaphore = ResizableSemaphore(2)
    found = await holders(semaphore, 4)
    assert [guest.inside for guest in found] == [True, True, False, False]
    assert (semaphore.busy, semaphore.waiting) == (2, 2)
    await found[1].leave()
    await settle()
    assert [guest.inside for guest in found] == [True, False, True, False]
    for guest in (found[0], found[2], found[3]):
        await guest.leave()
    assert (semaphore.busy, semaphore.waiting) == (0, 0)


async def test_the_size_can_grow_and_shrink() -> None:
    semaphore = ResizableSemaphore(1)
    found = await holders(semaphore, 4)
    semaphore.resize(3)
    await settle()
    assert sum(guest.inside for guest in found) == 3
    semaphore.resize(1)
    await found[0].leave()
    await found[1].leave()
    await settle()
    assert not found[3].inside
    await found[2].leave()
    await settle()
    assert found[3].inside
    await found[3].leave()


async def test_a_canceled_waiter_takes_no_slot() -> None:
    semaphore = ResizableSemaphore(1)
    first, second, third = await holders(semaphore, 3)
    await cancel(second.task)
    assert semaphore.waiting == 1
    await first.leave()
    await settle()
    assert third.inside
    await third.leave()
    assert semaphore.busy == 0


async def test_a_waiter_woken_and_canceled_at_once() -> None:
    semaphore = ResizableSemaphore(1)
    first, second, third = await holders(semaphore, 3)
    await first.leave()  # wakes the second, which has not run yet
    second.task.cancel()
    await settle()
    assert (third.inside, semaphore.busy) == (True, 1)
    await third.leave()
    assert semaphore.busy == 0


def test_a_breaker() -> None:
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    for _ in range(FAILURE_THRESHOLD - 1):
        breaker.record_failure("oops")
    assert not breaker.is_open
    breaker.record_success()
    for _ in range(FAILURE_THRESHOLD):
        assert not breaker.is_open
        breaker.record_failure("oops")
    assert (breaker.is_open, breaker.on_trial, breaker.reason) == (True, False, "oops")
    breaker.record_failure("late")  # was in progress
    now[0] += FIRST_PAUSE_S
    assert (breaker.is_open, breaker.on_trial) == (False, True)
    breaker.record_failure("again")
    assert breaker.is_open
    now[0] += FIRST_PAUSE_S
    assert breaker.is_open, "twice as long"
    now[0] += FIRST_PAUSE_S
    assert breaker.on_trial
    breaker.record_success()
    assert (breaker.is_open, breaker.on_trial, breaker.reason) == (False, False, "")


def test_a_breaker_does_not_wait_for_ever() -> None:
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    for _ in range(FAILURE_THRESHOLD):
        breaker.record_failure("oops")
    for _ in range(20):
        now[0] += LONGEST_PAUSE_S
        assert breaker.on_trial
        breaker.record_failure("oops")
