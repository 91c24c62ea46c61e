"""Whether a queue is paused, for whoever asks, and for whoever pauses it or lets it go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.pause import PauseField, paused_key
from common.errors import CorruptKey
from common.evaluating import evaluate
from common.scripts import script_of
from common.store import read

#: Longest text of who and why.
LONGEST: Final = 500

#: A Redis without memory refuses SET, unless the script has written before; and pausing may be how
#: one gets some time to look. So a key that never exists is deleted first, which takes none.
_PAUSE: Final = script_of("""
-- keys  1 of the paused queue  2 that never exists
-- args  1 JSON  2 control channel
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'NX')
redis.call('PUBLISH', ARGV[2], KEYS[1])
return redis.pcall('GET', KEYS[1])
""")

_RESUME: Final = script_of("""
-- keys  1 of the paused queue   args  1 control channel
local gone = redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1], KEYS[1])
return gone
""")


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when a queue is paused, by whom, and why, if they have said so."""

    since_ms: int
    by: str = ""
    why: str = ""

    def to_json(self) -> bytes:
        """As it is stored."""
        return codec.dumps(
            {
                PauseField.SINCE_MS.value: self.since_ms,
                PauseField.BY.value: self.by,
                PauseField.WHY.value: self.why,
            }
        )

    @classmethod
    def from_json(cls, raw: bytes) -> Pause:
        """Whatever the key holds, the queue is paused."""
        stored: dict[str, Any] = codec.payload_object(raw)
        since_ms = stored.get(PauseField.SINCE_MS.value)
        by, why = (stored.get(each.value) for each in (PauseField.BY, PauseField.WHY))
        return cls(
            since_ms if isinstance(since_ms, int) and since_ms >= 0 else 0,
            by[:LONGEST] if isinstance(by, str) else "",
            why[:LONGEST] if isinstance(why, str) else "",
        )


def pause_in(reply: object) -> Pause | None:
    """What GET of the key says; a refused question says nothing."""
    return Pause.from_json(reply) if isinstance(reply, bytes) else None


class Pauses:
    """Pauses the queue; raises StoreUnavailable."""

    def __init__(self, client: Redis, keys: JobKeys) -> None:
        self._client = client
        self._keys = keys

    async def pause(self, by: str, why: str) -> Pause:
        """Let no worker take another job; one that is paused stays as it is."""
        wanted = Pause(int(time.time() * 1000), by[:LONGEST], why[:LONGEST])
        raw = await read(
            evaluate(
                self._client,
                _PAUSE,
                [paused_key(self._keys.queue), self._keys.probe],
                [wanted.to_json(), self._keys.control],
            )
        )
        if raw is None:
            raise CorruptKey(f"{paused_key(self._keys.queue)} is none of ours")
        return Pause.from_json(raw)

    async def resume(self) -> bool:
        """Let workers go on; whether it was paused."""
        keys = self._keys
        command = evaluate(self._client, _RESUME, [paused_key(keys.queue)], [keys.control])
        return bool(await read(command))
