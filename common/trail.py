"""The trail: who did what with administrative rights. Written before the deed.

What cannot be written down is not done. The trail holds neither secrets nor payloads; a copy of
each entry goes to the log, where nobody who can only reach Redis can change it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from redis.asyncio import Redis

from common import codec
from common.contracts.access import AccessKeys, TrailAction, TrailField
from common.errors import CorruptKey
from common.store import read

log = logging.getLogger(__name__)

#: Entries kept, about.
LENGTH = 10_000
#: Longest text in an entry.
LONGEST = 256
NEWEST = "+"
#: A Redis without memory refuses XADD, unless the script has written before; and revoking a key or
#: purging letters is how it gets some back. So the trail is trimmed first, which takes none.
_APPEND = """
local trimmed = redis.pcall('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
if type(trimmed) == 'table' then
  return trimmed
end
return redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, 2))
"""


@dataclass(frozen=True)
class Deed:
    """What somebody is about to do."""

    #: A key's id, or `local`, with the user's name where a command does it.
    who: str
    action: TrailAction
    target: str = ""
    name: str = ""
    request_id: str = ""
    remote: str = ""


@dataclass(frozen=True)
class TrailEntry:
    """A deed that was written down."""

    id: str
    ts: int
    who: str
    name: str
    action: str
    target: str
    request_id: str
    remote: str


class Trail:
    """Appends to the trail and reads it."""

    def __init__(self, client: Redis, keys: AccessKeys | None = None) -> None:
        self._client = client
        self._key = (keys or AccessKeys()).trail

    async def write(self, deed: Deed) -> None:
        """Write a deed down; raises where that is not possible, and then it must not be done."""
        values: dict[TrailField, str] = {
            TrailField.WHO: deed.who,
            TrailField.NAME: deed.name,
            TrailField.ACTION: deed.action.value,
            TrailField.TARGET: deed.target,
            TrailField.REQUEST_ID: deed.request_id,
            TrailField.REMOTE: deed.remote,
            TrailField.TS: str(int(time.time() * 1000)),
        }
        flat = [text for field, value in values.items() for text in (field.value, _short(value))]
        written = await read(self._client.eval(_APPEND, 1, self._key, str(LENGTH), *flat))
        if written is None:
            raise CorruptKey(f"{self._key} is no stream, so nothing can be written down there")
        whence = f" from {_short(deed.remote)}" if deed.remote else ""
        who, target = _short(deed.who), _short(deed.target)
        log.info("trail: %s %s %s%s", who, deed.action.value, target, whence)

    async def page(self, before: str, count: int) -> list[TrailEntry]:
        """Entries older than an id (`+` for all), newest first."""
        if before == "0-0":  # nothing is older, and Redis refuses to look
            return []
        end = before if before == NEWEST else f"({before}"
        entries = await read(self._client.xrevrange(self._key, end, "-", count=count))
        if entries is None:
            raise CorruptKey(f"{self._key} is no stream, so nobody knows what was done")
        return [_entry(*entry) for entry in entries]


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> TrailEntry:
    def get(field: TrailField) -> str:
        return codec.text(fields.get(field.value.encode(), b""))

    return TrailEntry(
        id=entry_id.decode(),
        ts=codec.integer(fields.get(TrailField.TS.value.encode(), b"0")),
        who=get(TrailField.WHO),
        name=get(TrailField.NAME),
        action=get(TrailField.ACTION),
        target=get(TrailField.TARGET),
        request_id=get(TrailField.REQUEST_ID),
        remote=get(TrailField.REMOTE),
    )


def _short(value: str) -> str:
    """On one line, whatever it says: the log must not tell of deeds that nobody has done."""
    text = value[:LONGEST].encode(errors="replace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
