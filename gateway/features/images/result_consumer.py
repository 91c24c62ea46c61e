"""The consumer of `image:result`: writes results of pipelines to the records.

Sluice's pipeline writes record and entry in one script, so its entries only need to be
acknowledged. A third-party pipeline may write to the stream only. Any number of gateways share the
work; persisting a result is idempotent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError, ResponseError

from sluice.common.codec import decode_text
from sluice.common.contracts.images import MOST_DELIVERIES, RESULT_CONSUMER_PREFIX, RESULT_GROUP
from sluice.common.errors import StoreUnavailable
from sluice.common.features.images.records import find_entry_error
from sluice.common.features.images.store import ImageStore
from sluice.common.features.images.types import ImageAnswer
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.text import plural
from sluice.gateway.features.images.metrics import ImageMetrics, ResultOutcome

log = logging.getLogger(__name__)

#: Entries read at once, and seconds to block for one.
BATCH: Final = 16
BLOCK_S: Final = 2.0
_OWN_PENDING: Final = "0"
_NEW: Final = ">"


@dataclass(frozen=True)
class ConsumerTimings:
    """Intervals of a result consumer, in seconds."""

    #: Idle time after which a pending result is claimed from another consumer, and the interval.
    idle_s: float = 30.0
    take_over_every_s: float = 15.0
    #: Idle time after which a consumer without pending results is deleted, and the interval.
    stale_s: float = 600.0
    forget_every_s: float = 60.0
    #: Wait after an error: first, and at most.
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0


class ResultEntry(NamedTuple):
    """One entry of the stream. `fields`: None if the entry was trimmed."""

    entry_id: str
    fields: dict[str, str] | None


class ResultConsumer:
    """One per process, with its own connection, since it blocks."""

    def __init__(
        self,
        wire: CommandClient,
        images: ImageStore,
        numbers: ImageMetrics,
        pace: ConsumerTimings | None = None,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wire = wire
        self._images = images
        self._metrics = numbers
        self._pace = pace or ConsumerTimings()
        self.name = name or consumer_name()
        self._clock = clock
        self._stream = images.keys.results
        self._take_over_at = self._forget_at = 0.0
        #: Cursor of XAUTOCLAIM.
        self._cursor = "0-0"
        #: True if this consumer may have pending results.
        self._behind = True

    async def run(self) -> None:
        """Consume until canceled; survives errors of Redis."""
        wait_s = self._pace.first_wait_s
        await self._make_group()
        while True:
            try:
                await self.run_once()
                wait_s = self._pace.first_wait_s
                continue
            except ResponseError as error:
                if not _is_no_group(error):
                    log.error("image results not read: %s", error)
                else:
                    log.warning("image results: the consumer group is missing, creating it again")
                    await self._make_group()
            except (StoreUnavailable, RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("image results not read: %s", error)
            except Exception:  # the loop must continue
                log.exception("image results not read after an unexpected error")
            self._behind = True
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, self._pace.longest_wait_s)

    async def run_once(self) -> int:
        """Process own pending results, those claimed from other consumers, then new ones.

        Returns how many were processed.
        """
        if self._behind:
            count = await self._own_pending()
            self._behind = False
            return count
        now = self._clock()
        if now >= self._take_over_at:
            self._take_over_at = now + self._pace.take_over_every_s
            await self._take_over()
        if now >= self._forget_at:
            self._forget_at = now + self._pace.forget_every_s
            await self._forget_stale()
        return await self._process(await self._read(_NEW))

    async def _make_group(self) -> None:
        try:
            await self._wire.execute_command(
                "XGROUP", "CREATE", self._stream, RESULT_GROUP, "0", "MKSTREAM"
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                log.error("image results: consumer group not created: %s", error)
        except (RedisError, *TRANSIENT_ERRORS) as error:
            log.warning("image results: consumer group not created: %s", error)

    async def _own_pending(self) -> int:
        """Process entries that this consumer has read and not acknowledged."""
        after, count = _OWN_PENDING, 0
        while entries := await self._read(after):
            count += await self._process(entries)
            after = entries[-1].entry_id
        return count

    async def _read(self, after: str) -> list[ResultEntry]:
        reply: Any = await self._wire.execute_command(
            *("XREADGROUP", "GROUP", RESULT_GROUP, self.name, "COUNT", BATCH),
            *(("BLOCK", int(BLOCK_S * 1000)) if after == _NEW else ()),
            *("STREAMS", self._stream, after),
        )
        return [] if not reply else [_entry(raw) for raw in reply[0][1]]

    async def _take_over(self) -> None:
        """Claim pending results of dead consumers, and own ones that failed before."""
        reply: Any = await self._wire.execute_command(
            *("XAUTOCLAIM", self._stream, RESULT_GROUP, self.name),
            *(int(self._pace.idle_s * 1000), self._cursor, "COUNT", BATCH),
        )
        self._cursor = decode_text(reply[0])
        entries = [_entry(raw) for raw in reply[1] if raw]
        if len(entries) < len(reply[1]):  # Redis 6.2 claims trimmed entries without their ids
            self._behind = True
        if entries:
            log.info("%d image results claimed from other consumers", len(entries))
            await self._process(entries)

    async def _process(self, entries: list[ResultEntry]) -> int:
        for entry in entries:
            if entry.fields is None:  # trimmed; a worker's reconciler uses the job instead
                await self._wire.execute_command("XACK", self._stream, RESULT_GROUP, entry.entry_id)
            else:
                await self._process_one(entry.entry_id, entry.fields)
        return len(entries)

    async def _process_one(self, entry_id: str, fields: Mapping[str, str]) -> None:
        """Persist a result.

        A transient error is raised, and the entry stays pending. An invalid entry is dead-lettered
        at once, any other after MOST_DELIVERIES.
        """
        flaw = find_entry_error(fields)
        if flaw:
            await self._dead_letter(entry_id, fields, flaw, await self._deliveries(entry_id))
            return
        try:
            outcome = await self._images.persist(entry_id, fields, RESULT_GROUP)
        except StoreUnavailable:
            raise
        except Exception as error:
            deliveries = await self._deliveries(entry_id)
            log.warning(
                "image result %s failed %s: %s", entry_id, plural(deliveries, "time"), error
            )
            if deliveries >= MOST_DELIVERIES:
                await self._dead_letter(entry_id, fields, str(error), deliveries)
            return
        done = outcome.answer is ImageAnswer.OK
        self._metrics.results[ResultOutcome.PERSISTED if done else ResultOutcome.KNOWN] += 1

    async def _dead_letter(
        self, entry_id: str, fields: Mapping[str, str], reason: str, deliveries: int
    ) -> None:
        log.error("image result %s dead-lettered: %s", entry_id, reason)
        await self._images.dead_letter_result(entry_id, fields, reason, deliveries, RESULT_GROUP)
        self._metrics.results[ResultOutcome.DEAD] += 1

    async def _deliveries(self, entry_id: str) -> int:
        reply: Any = await self._wire.execute_command(
            "XPENDING", self._stream, RESULT_GROUP, entry_id, entry_id, 1
        )
        return int(reply[0][3]) if reply else 1

    async def _forget_stale(self) -> None:
        """Delete consumers of gateways that no longer exist and have no pending results."""
        reply: Any = await self._wire.execute_command(
            "XINFO", "CONSUMERS", self._stream, RESULT_GROUP
        )
        for raw in reply:
            facts = dict(zip(map(decode_text, raw[::2]), raw[1::2]))
            name = decode_text(facts.get("name", b""))
            idle_s = int(facts.get("idle", 0)) / 1000
            if (
                name != self.name
                and name.startswith(RESULT_CONSUMER_PREFIX)
                and not facts.get("pending")
                and idle_s >= self._pace.stale_s
            ):
                await self._wire.execute_command(
                    "XGROUP", "DELCONSUMER", self._stream, RESULT_GROUP, name
                )


def consumer_name() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{RESULT_CONSUMER_PREFIX}{host}-{os.getpid()}"


def _entry(raw: Any) -> ResultEntry:
    entry_id, flat = raw
    if flat is None:
        return ResultEntry(decode_text(entry_id), None)
    parts = [decode_text(part) for part in flat]
    return ResultEntry(decode_text(entry_id), dict(zip(parts[::2], parts[1::2])))


def _is_no_group(error: ResponseError) -> bool:
    return str(error).startswith("NOGROUP")
