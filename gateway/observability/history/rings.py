"""Ring buffers of samples in Redis. Each sample is written once, by the holder of the lease."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.stats import Resolution, StatsKeys
from sluice.common.errors import CorruptKey
from sluice.common.jobs.store import read_reply
from sluice.common.redis.scripts import plain_script, run_script
from sluice.gateway.observability.history.samples import Sample

#: Seconds for which the worker counters at the last sample are stored.
BASELINES_TTL_S: Final = 24 * 3600


class WriteOutcome(str, Enum):
    """Outcome of writing a sample."""

    OK = "ok"
    #: There already is a sample of that time, or a later one.
    TAKEN = "taken"
    #: Another gateway holds the lease.
    LOST = "lost"


#: The lease is renewed first. That needs no memory, and once a script has written, Redis lets it
#: continue to write even when out of memory. So operators see the history in that situation; rings
#: have a fixed length.
_APPEND: Final = plain_script("""
-- keys  1 lease  2 ring  3 worker baselines
-- args  1 token  2 lease ms  3 id  4 length  5 baselines, or ''  6 their ttl_s  7… fields
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'lost'
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', ARGV[4], ARGV[3], unpack(ARGV, 7))
if type(added) == 'table' then
  return string.find(tostring(added['err']), 'equal or smaller', 1, true) and 'taken' or added
end
if ARGV[5] ~= '' then
  redis.call('SET', KEYS[3], ARGV[5], 'EX', ARGV[6])
end
return 'ok'
""")

#: Deletes samples with a future time, left by a clock that was ahead. XADD rejects smaller ids, so
#: without this no sample could be written until that time.
_REWIND: Final = plain_script("""
-- keys  1 lease  2 ring
-- args  1 token  2 id of the last entry to keep
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local kept = redis.call('XRANGE', KEYS[2], '-', ARGV[2])
redis.call('DEL', KEYS[2])
for _, entry in ipairs(kept) do
  redis.call('XADD', KEYS[2], entry[1], unpack(entry[2]))
end
return 1
""")

_RELEASE: Final = plain_script("""
-- keys  1 lease   args  1 token
return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
""")


class SamplerLease(NamedTuple):
    """The right to write samples, valid while the token is stored in Redis."""

    token: str
    ttl_ms: int


class Rings:
    """Reads and writes samples. Raises StoreUnavailable, or CorruptKey for a wrong key type."""

    def __init__(self, client: Redis, keys: StatsKeys) -> None:
        self._client = client
        self.keys = keys

    async def acquire(self, lease: SamplerLease) -> bool:
        """Take the lease; False if another gateway holds it."""
        return bool(
            await read_reply(
                self._client.set(self.keys.sampler_lock, lease.token, nx=True, px=lease.ttl_ms)
            )
        )

    async def release(self, lease: SamplerLease) -> None:
        await read_reply(
            run_script(self._client, _RELEASE, [self.keys.sampler_lock], [lease.token])
        )

    async def append(
        self, resolution: Resolution, sample: Sample, lease: SamplerLease, seen: str = ""
    ) -> WriteOutcome:
        """Write a sample and renew the lease; `seen` are the worker baselines that belong to it."""
        keys = self.keys
        args: list[str | int] = [
            lease.token,
            lease.ttl_ms,
            f"{sample.ts}-0",
            resolution.length,
            seen,
        ]
        reply = await read_reply(
            run_script(
                self._client,
                _APPEND,
                [keys.sampler_lock, keys.ring(resolution), keys.seen],
                [*args, BASELINES_TTL_S, *sample.encode()],
            )
        )
        if reply is None:
            raise CorruptKey(f"{keys.ring(resolution)} is not a stream of samples")
        return WriteOutcome(codec.decode_text(reply))

    async def rewind(self, resolution: Resolution, lease: SamplerLease, now_ms: int) -> None:
        keys = [self.keys.sampler_lock, self.keys.ring(resolution)]
        await read_reply(run_script(self._client, _REWIND, keys, [lease.token, f"{now_ms}-0"]))

    async def after(
        self, resolution: Resolution, ts: int, until: int | None = None, count: int | None = None
    ) -> list[Sample]:
        """Samples later than `ts` and up to `until`, oldest first."""
        end = "+" if until is None else f"{until}-0"
        # Skip all entries of that millisecond, including those of a third-party writer.
        start = f"({ts}-{_LAST_OF_MS}" if ts > 0 else "-"
        reply = await read_reply(
            self._client.xrange(self.keys.ring(resolution), start, end, count=count)
        )
        return _samples(reply)

    async def newest(self, resolution: Resolution) -> Sample | None:
        """The last sample, if there is any."""
        reply = await read_reply(self._client.xrevrange(self.keys.ring(resolution), count=1))
        found = _samples(reply)
        return found[0] if found else None

    async def seen(self) -> bytes:
        """The worker baselines stored with the last sample."""
        raw = await read_reply(self._client.get(self.keys.seen))
        return raw if isinstance(raw, bytes) else b""


_LAST_OF_MS: Final = (1 << 64) - 1


def _samples(reply: Any) -> list[Sample]:
    entries: list[tuple[bytes, Mapping[bytes, bytes]]] = reply or []
    # An entry that was deleted during the read has no fields.
    return [Sample.decode(entry_id, fields) for entry_id, fields in entries if fields]
