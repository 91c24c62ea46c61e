"""The rings of samples in Redis: each time is written once, by whoever keeps the history then."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.stats import Resolution, StatsKeys
from common.errors import CorruptKey
from common.jobs.store import read_reply
from common.redis.scripts import plain_script, run_script
from gateway.observability.history.samples import Sample

#: How long the numbers of workers that are in the samples already are remembered.
BASELINES_TTL_S: Final = 24 * 3600


class WriteOutcome(str, Enum):
    """What became of a sample."""

    OK = "ok"
    #: There is one of that time, or a later one.
    TAKEN = "taken"
    #: Somebody else keeps the history now.
    LOST = "lost"


#: The keeper's place is kept first: that takes no memory, and a script that has written before may
#: also write where Redis has none left. Rings are bounded, and then everybody looks at them.
_APPEND: Final = plain_script("""
-- keys  1 the keeper's place  2 ring  3 what is seen of workers
-- args  1 token  2 ms to keep the place for  3 id  4 length  5 seen, or ''  6 its ttl_s  7… fields
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

#: A clock that was ahead has left samples in the future, after which nothing could be written.
_REWIND: Final = plain_script("""
-- keys  1 the keeper's place  2 ring
-- args  1 token  2 id of the last entry that may stay
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

_LEAVE: Final = plain_script("""
-- keys  1 the keeper's place   args  1 token
return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
""")


class SamplerLease(NamedTuple):
    """The right to write, for as long as the token lies in Redis."""

    token: str
    ttl_ms: int


class Rings:
    """Reads samples and writes them; raises StoreUnavailable, or CorruptKey for what is no ring."""

    def __init__(self, client: Redis, keys: StatsKeys) -> None:
        self._client = client
        self.keys = keys

    async def acquire(self, place: SamplerLease) -> bool:
        """Be the only keeper, unless somebody else is."""
        return bool(
            await read_reply(
                self._client.set(self.keys.sampler_lock, place.token, nx=True, px=place.ttl_ms)
            )
        )

    async def release(self, place: SamplerLease) -> None:
        await read_reply(run_script(self._client, _LEAVE, [self.keys.sampler_lock], [place.token]))

    async def append(
        self, resolution: Resolution, sample: Sample, place: SamplerLease, seen: str = ""
    ) -> WriteOutcome:
        """Write a sample, and with it what is in the samples by now; renews the place."""
        keys = self.keys
        args: list[str | int] = [
            place.token,
            place.ttl_ms,
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
            raise CorruptKey(f"{keys.ring(resolution)} is no ring of samples")
        return WriteOutcome(codec.decode_text(reply))

    async def rewind(self, resolution: Resolution, place: SamplerLease, now_ms: int) -> None:
        keys = [self.keys.sampler_lock, self.keys.ring(resolution)]
        await read_reply(run_script(self._client, _REWIND, keys, [place.token, f"{now_ms}-0"]))

    async def after(
        self, resolution: Resolution, ts: int, until: int | None = None, count: int | None = None
    ) -> list[Sample]:
        """Samples later than a time and up to another, oldest first."""
        end = "+" if until is None else f"{until}-0"
        # An id that a foreign hand has numbered otherwise is of the same time.
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
        """What the last keeper has seen of workers."""
        raw = await read_reply(self._client.get(self.keys.seen))
        return raw if isinstance(raw, bytes) else b""


_LAST_OF_MS: Final = (1 << 64) - 1


def _samples(reply: Any) -> list[Sample]:
    entries: list[tuple[bytes, Mapping[bytes, bytes]]] = reply or []
    # An entry that was deleted while it was read has no fields.
    return [Sample.decode(entry_id, fields) for entry_id, fields in entries if fields]
