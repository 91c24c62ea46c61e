"""Simulated time for messages in wait queues, independent of real time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.store.jobs import StoreHarness

#: Increases the idle time of every message in a wait queue by so many milliseconds more than that
#: of the longest idle one; returns that. In one step: a message may be taken at any time.
_GROW_OLDER = """
local idle, ids = {}, {}
for _, row in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000)) do
  local id, consumer, since = unpack(row)
  if string.sub(consumer, 1, #ARGV[2]) == ARGV[2] then
    idle[consumer] = math.max(idle[consumer] or 0, since + ARGV[3])
    ids[consumer] = ids[consumer] or {}
    table.insert(ids[consumer], id)
  end
end
local longest = 0
for wait_queue, ms in pairs(idle) do
  for _, word in ipairs({ 'IDLE', ms, 'JUSTID' }) do
    table.insert(ids[wait_queue], word)
  end
  redis.call('XCLAIM', KEYS[1], ARGV[1], wait_queue, 0, unpack(ids[wait_queue]))
  longest = math.max(longest, ms)
end
return longest
"""


class AgingWaitQueues:
    """Replaces `asyncio` in the code that touches wait queues.

    A sleep returns soon, while waiting messages age by the full time. So leases can be so long that
    no stall of this machine expires them, and still expire within a second of test time.
    """

    def __init__(self, harness: StoreHarness, wait_queue: str, workers: int, wake_s: float) -> None:
        self._harness = harness
        self._wait_queue = wait_queue
        self._workers = workers
        self._wake_s = wake_s
        #: Simulated milliseconds, and the longest time that a message was not touched.
        self.passed_ms = 0
        self.longest_ms = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        """Several workers sleep at the same time: each advances its share of the time."""
        share_ms = int(seconds * 1000 / self._workers)
        harness, client = self._harness, cast(Any, self._harness.client)
        args = harness.keys.queue, harness.worker.group, self._wait_queue, share_ms
        longest_ms = int(await client.eval(_GROW_OLDER, 1, *args))
        self.longest_ms = max(self.longest_ms, longest_ms)
        self.passed_ms += share_ms
        await asyncio.sleep(self._wake_s)


def hurry(
    patch: pytest.MonkeyPatch,
    harness: StoreHarness,
    wait_queue: str,
    *,
    workers: int,
    wake_s: float,
) -> AgingWaitQueues:
    """Use simulated time from now on."""
    wait_queues = AgingWaitQueues(harness, wait_queue, workers, wake_s)
    patch.setattr("sluice.worker.queue.wait_queue.asyncio", wait_queues)
    return wait_queues
