"""What only Redis knows, for `/metrics` and `/v1/status`: two or three round trips, not more."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from common import codec, heartbeats
from common.audit_report import AUDIT_FIELDS, AuditRecord
from common.heartbeats import Heartbeat, WaitingReading
from common.queue_reading import QueueReader, QueueReading
from gateway.shared_limits import SharedLimit, shared_limits, waiting_in
from gateway.state import GatewayState

#: What INFO says where nothing bounds the memory of Redis.
_UNBOUNDED = 0


class Standstill:
    """How long the queue has not moved, as far as this process has seen.

    A gateway does not read the queue. Where no worker lives to tell how old the oldest message is,
    this is the least that it can be.
    """

    def __init__(self) -> None:
        self._delivered: str | None = None
        self._since_s = 0.0

    def age_s(self, delivered: str | None, waiting: int | None, now_s: float) -> float | None:
        """Seconds that at least one message has waited; None for unknown."""
        if delivered is None or waiting is None:
            self._delivered = None
            return None
        if not waiting:
            self._delivered = None
            return 0.0
        if delivered != self._delivered:
            self._delivered, self._since_s = delivered, now_s
        return now_s - self._since_s


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """One look at Redis; None for what it did not tell."""

    rtt_s: float
    #: How far the clock of Redis is ahead.
    clock_skew_s: float
    queue: QueueReading
    oldest_age_s: float | None
    scheduled: int | None
    dead_letters: int | None
    finished: int | None
    audits: AuditRecord | None
    workers: list[Heartbeat]
    #: What INFO says; empty where it may not be asked.
    info: dict[str, Any]
    #: Places that workers share; what waits for a place, by task; and the time of Redis.
    limits: list[SharedLimit] = field(default_factory=list)
    waiting: dict[str, WaitingReading] = field(default_factory=dict)
    now_ms: int = 0

    def age_s(self, since_ms: int) -> float | None:
        """Seconds since then, by the clock of Redis; None for unknown."""
        return max(0.0, (self.now_ms - since_ms) / 1000) if since_ms else None

    @property
    def memory_ratio(self) -> float | None:
        """Memory that Redis uses, of what it may, or else of what the machine has."""
        used = self.info.get("used_memory")
        most = self.info.get("maxmemory") or self.info.get("total_system_memory") or _UNBOUNDED
        if not isinstance(used, int) or not isinstance(most, int) or most <= 0:
            return None
        return used / most

    @property
    def backlog(self) -> int | None:
        """What waits or runs; None for unknown."""
        if self.queue.waiting is None or self.queue.pending is None:
            return None
        return self.queue.waiting + self.queue.pending


async def look(state: GatewayState, standstill: Standstill) -> RedisFacts:
    """Ask for everything at once; raises what keeps Redis from answering at all."""
    keys, reader = state.settings.keys, _reader(state)
    started = time.perf_counter()
    asked_s = time.time()
    async with state.client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zcard(keys.scheduled)
        pipe.xlen(keys.dead_letters)
        pipe.get(keys.finished)
        pipe.hmget(keys.audit, list(AUDIT_FIELDS))
        pipe.info()
        heartbeats.ask_names(pipe, keys)
        reader.ask(pipe)
        replies = await pipe.execute(raise_on_error=False)
    rtt_s = time.perf_counter() - started
    clock, scheduled, dead, finished, audits, info, names, *queue = replies
    own = reader.answer(queue)
    workers = await _workers(state, heartbeats.names_in(names))
    reading = _with_help_of(workers, own).estimated()
    now_s = time.time()
    now_ms = int(clock[0] * 1000 + clock[1] // 1000)
    waited_s = standstill.age_s(reader.delivered, own.waiting, now_s)
    return RedisFacts(
        rtt_s=rtt_s,
        clock_skew_s=clock[0] + clock[1] / 1e6 - asked_s - rtt_s / 2,
        queue=reading,
        oldest_age_s=_oldest_age_s(reading, waited_s, now_s),
        scheduled=_number(scheduled),
        dead_letters=_number(dead),
        finished=_number(finished),
        audits=None if isinstance(audits, Exception) else AuditRecord.from_values(audits),
        workers=workers,
        info=info if isinstance(info, dict) else {},
        limits=await shared_limits(state, workers, now_ms),
        waiting=waiting_in(workers),
        now_ms=now_ms,
    )


def _reader(state: GatewayState) -> QueueReader:
    return QueueReader(state.settings.keys.queue, state.settings.worker_group)


async def _workers(state: GatewayState, names: list[str]) -> list[Heartbeat]:
    if not names:
        return []
    async with state.client.pipeline(transaction=False) as pipe:
        heartbeats.ask_heartbeats(pipe, state.settings.keys, names)
        [replies] = await pipe.execute(raise_on_error=False)
    return heartbeats.heartbeats_in(replies, names)


def _with_help_of(workers: list[Heartbeat], reading: QueueReading) -> QueueReading:
    """What we may not see or Redis does not know, as the worker saw it that was heard of last."""
    if not workers:
        return reading
    theirs = max(workers, key=lambda beat: beat.seen_ms).queue
    return theirs.model_copy(update=reading.model_dump(exclude_none=True))


def _oldest_age_s(reading: QueueReading, waited_s: float | None, now_s: float) -> float | None:
    if reading.waiting == 0:
        return 0.0
    if reading.oldest_ms is None:
        return waited_s
    return max(0.0, now_s - reading.oldest_ms / 1000) if reading.oldest_ms else 0.0


def _number(reply: Any) -> int | None:
    if isinstance(reply, Exception):
        return None
    return codec.integer(reply) if isinstance(reply, bytes) else int(reply or 0)
