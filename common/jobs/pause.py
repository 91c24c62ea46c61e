"""Pausing and resuming a queue."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import PauseField, paused_key
from sluice.common.errors import CorruptKey
from sluice.common.jobs.store import read_reply
from sluice.common.redis.scripts import plain_script, run_script

#: Longest `by` and `why`, in characters.
MAX_TEXT_CHARS: Final = 500

#: A Redis that is out of memory refuses SET unless the script has written before. An operator may
#: need to pause just then. So a key that never exists is deleted first, which takes no memory.
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
    """When a queue was paused, by whom and why, as far as that was given."""

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
        """Parse the key's value. Even if it is invalid, the queue is paused."""
        stored: dict[str, Any] = codec.parse_payload(raw)
        since_ms = stored.get(PauseField.SINCE_MS)
        by, why = (stored.get(each) for each in (PauseField.BY, PauseField.WHY))
        return cls(
            since_ms if isinstance(since_ms, int) and since_ms >= 0 else 0,
            by[:MAX_TEXT_CHARS] if isinstance(by, str) else "",
            why[:MAX_TEXT_CHARS] if isinstance(why, str) else "",
        )


def parse_pause(reply: object) -> Pause | None:
    """Parse the reply to GET; None if there is no pause, or GET was refused."""
    return Pause.from_json(reply) if isinstance(reply, bytes) else None


class PauseStore:
    """Pauses the queue; raises StoreUnavailable."""

    def __init__(self, client: Redis, keys: JobKeys) -> None:
        self._client = client
        self._keys = keys

    async def pause(self, by: str, why: str) -> Pause:
        """Stop workers from taking jobs; an existing pause stays as it is."""
        pause = Pause(int(time.time() * 1000), by[:MAX_TEXT_CHARS], why[:MAX_TEXT_CHARS])
        raw = await read_reply(
            run_script(
                self._client,
                _PAUSE,
                [paused_key(self._keys.queue), self._keys.probe],
                [pause.to_json(), self._keys.control],
            )
        )
        if raw is None:
            raise CorruptKey(f"{paused_key(self._keys.queue)} does not hold a pause")
        return Pause.from_json(raw)

    async def resume(self) -> bool:
        """Let workers take jobs again; returns whether the queue was paused."""
        keys = self._keys
        command = run_script(self._client, _RESUME, [paused_key(keys.queue)], [keys.control])
        return bool(await read_reply(command))
