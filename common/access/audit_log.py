"""The trail: who did what with administrative rights. Written before the entry.

What cannot be written down is not done. The trail holds neither secrets nor payloads; a copy of
each entry goes to the log, where nobody who can only reach Redis can change it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from redis.asyncio import Redis

from common import codec
from common.contracts.access import AccessKeys, AuditAction, AuditLogField
from common.errors import CorruptKey
from common.jobs.store import read_reply

log = logging.getLogger(__name__)

#: Entries kept, about.
MAX_ENTRIES = 10_000
#: Longest text in an entry.
MAX_TEXT_CHARS = 256
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
class AuditEntry:
    """What somebody is about to do."""

    #: A key's id, or `local`, with the user's name where a command does it.
    who: str
    action: AuditAction
    target: str = ""
    name: str = ""
    request_id: str = ""
    remote: str = ""


@dataclass(frozen=True)
class StoredAuditEntry:
    """A entry that was written down."""

    id: str
    ts: int
    who: str
    name: str
    action: str
    target: str
    request_id: str
    remote: str


class AuditLog:
    """Appends to the trail and reads it."""

    def __init__(self, client: Redis, keys: AccessKeys | None = None) -> None:
        self._client = client
        self._key = (keys or AccessKeys()).audit_log

    async def write(self, entry: AuditEntry) -> None:
        """Write a entry down; raises where that is not possible, and then it must not be done."""
        values: dict[str, str] = {
            AuditLogField.WHO: entry.who,
            AuditLogField.NAME: entry.name,
            AuditLogField.ACTION: entry.action.value,
            AuditLogField.TARGET: entry.target,
            AuditLogField.REQUEST_ID: entry.request_id,
            AuditLogField.REMOTE: entry.remote,
            AuditLogField.TS: str(int(time.time() * 1000)),
        }
        flat = [text for field, value in values.items() for text in (field, _printable(value))]
        written = await read_reply(
            self._client.eval(_APPEND, 1, self._key, str(MAX_ENTRIES), *flat)
        )
        if written is None:
            raise CorruptKey(f"{self._key} is no stream, so nothing can be written down there")
        whence = f" from {_printable(entry.remote)}" if entry.remote else ""
        who, target = _printable(entry.who), _printable(entry.target)
        log.info("trail: %s %s %s%s", who, entry.action.value, target, whence)

    async def page(self, before: str, count: int) -> list[StoredAuditEntry]:
        """Entries older than an id (`+` for all), newest first."""
        if before == "0-0":  # nothing is older, and Redis refuses to look
            return []
        end = before if before == NEWEST else f"({before}"
        entries = await read_reply(self._client.xrevrange(self._key, end, "-", count=count))
        if entries is None:
            raise CorruptKey(f"{self._key} is no stream, so nobody knows what was done")
        return [_entry(*entry) for entry in entries]


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> StoredAuditEntry:
    def get(field: str) -> str:
        return codec.decode_text(fields.get(field.encode(), b""))

    return StoredAuditEntry(
        id=entry_id.decode(),
        ts=codec.parse_int(fields.get(AuditLogField.TS.encode(), b"0")),
        who=get(AuditLogField.WHO),
        name=get(AuditLogField.NAME),
        action=get(AuditLogField.ACTION),
        target=get(AuditLogField.TARGET),
        request_id=get(AuditLogField.REQUEST_ID),
        remote=get(AuditLogField.REMOTE),
    )


def _printable(value: str) -> str:
    """On one line, whatever it says: the log must not tell of deeds that nobody has done."""
    text = value[:MAX_TEXT_CHARS].encode(errors="replace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
