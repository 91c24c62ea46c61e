"""The audit log of administrative actions. An entry is written before its action.

If the entry cannot be written, the action must not happen. Entries contain neither secrets nor
payloads. A copy of each entry goes to the log, where a client of Redis cannot change it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.access import AccessKeys, AuditAction, AuditLogField
from sluice.common.errors import CorruptKey
from sluice.common.jobs.store import read_reply

log = logging.getLogger(__name__)

#: Approximate number of entries kept.
MAX_ENTRIES = 10_000
#: Longest text in an entry, in characters.
MAX_TEXT_CHARS = 256
NEWEST = "+"
#: A Redis that is out of memory refuses XADD unless the script has written before. Revoking a key
#: or purging dead letters frees memory, so the log is trimmed first, which needs none.
_APPEND = """
local trimmed = redis.pcall('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
if type(trimmed) == 'table' then
  return trimmed
end
return redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, 2))
"""


@dataclass(frozen=True)
class AuditEntry:
    """An action that is about to happen."""

    #: A key id; or `local`, with the user name if a command performs the action.
    who: str
    action: AuditAction
    target: str = ""
    name: str = ""
    request_id: str = ""
    remote: str = ""


@dataclass(frozen=True)
class StoredAuditEntry:
    """An entry read from the audit log."""

    id: str
    ts: int
    who: str
    name: str
    action: str
    target: str
    request_id: str
    remote: str


class AuditLog:
    """Appends to and reads the audit log."""

    def __init__(self, client: Redis, keys: AccessKeys | None = None) -> None:
        self._client = client
        self._key = (keys or AccessKeys()).audit_log

    async def write(self, entry: AuditEntry) -> None:
        """Append an entry; if this raises, the action must not happen."""
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
            raise CorruptKey(f"{self._key} is not a stream, so no action can be recorded")
        origin = f" from {_printable(entry.remote)}" if entry.remote else ""
        who, target = _printable(entry.who), _printable(entry.target)
        log.info("audit log: %s %s %s%s", who, entry.action.value, target, origin)

    async def page(self, before: str, count: int) -> list[StoredAuditEntry]:
        """Entries older than an id (`+` for all), newest first."""
        if before == "0-0":  # nothing is older, and Redis rejects the range
            return []
        end = before if before == NEWEST else f"({before}"
        entries = await read_reply(self._client.xrevrange(self._key, end, "-", count=count))
        if entries is None:
            raise CorruptKey(f"{self._key} is not a stream, so the audit log cannot be read")
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
    """Text on one line: a value must not be able to forge log lines."""
    text = value[:MAX_TEXT_CHARS].encode(errors="replace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
