"""Whether a queue is paused, for whoever asks, and for whoever pauses it or lets it go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.queue import PauseField, paused_key
from common.errors import CorruptKey
from common.jobs.store import read_reply
from common.redis.scripts import plain_script, run_script

#: Longest text of who and why.
MAX_TEXT_CHARS: Final = 500

#: A Redis without memory refuses SET, unless the script has written before; and pausing may be how
#: one gets some time to look. So a key that never exists is deleted first, which takes none.
_PAUSE: Final = plain_script("""
-- keys  1 of the paused queue  2 that never exists
-- args  1 JSON  2 control channel
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'NX')
redis.call('PUBLISH', ARGV[2], KEYS[1])
return redis.pcall('GET', KEYS[1])
""")

_RESUME: Final = plain_script("""
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
        return codec.dumps(
            {
                PauseField.SINCE_MS: self.since_ms,
                PauseField.BY: self.by,
                PauseField.WHY: self.why,
            }
        )

    @classmethod
    def from_json(cls, raw: bytes) -> Pause:
        """Whatever the key holds, the queue is paused."""
        stored: dict[str, Any] = codec.parse_payload(raw)
        since_ms = stored.get(PauseField.SINCE_MS)
        by, why = (stored.get(each) for each in (PauseField.BY, PauseField.WHY))
        return cls(
            since_ms if isinstance(since_ms, int) and since_ms >= 0 else 0,
            by[:MAX_TEXT_CHARS] if isinstance(by, str) else "",
            why[:MAX_TEXT_CHARS] if isinstance(why, str) else "",
        )


def parse_pause(reply: object) -> Pause | None:
    """What GET of the key says; a refused question says nothing."""
    return Pause.from_json(reply) if isinstance(reply, bytes) else None


class PauseStore:
    """Pauses the queue; raises StoreUnavailable."""

    def __init__(self, client: Redis, keys: JobKeys) -> None:
        self._client = client
        self._keys = keys

    async def pause(self, by: str, why: str) -> Pause:
        """Let no worker take another job; one that is paused stays as it is."""
        wanted = Pause(int(time.time() * 1000), by[:MAX_TEXT_CHARS], why[:MAX_TEXT_CHARS])
        raw = await read_reply(
            run_script(
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
        command = run_script(self._client, _RESUME, [paused_key(keys.queue)], [keys.control])
        return bool(await read_reply(command))
