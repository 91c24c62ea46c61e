"""OntologyReader: reads the terms of a namespace and their aliases."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.rag import MOST_ALIASES, NAME_CHARS, RagKeys, TermField
from sluice.common.jobs.store import read_reply

#: Default number of terms per page.
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500


def normalize_name(name: str) -> str:
    """Normalise Unicode and white space, and limit the length."""
    return " ".join(unicodedata.normalize("NFC", name).split())[:NAME_CHARS].rstrip()


def term_key(name: str) -> str:
    """The field of a term: equal for all spellings that differ only in case."""
    return " ".join(unicodedata.normalize("NFKC", normalize_name(name)).casefold().split())


@dataclass(frozen=True)
class TermEntry:
    """A term and its aliases."""

    term: str
    aliases: tuple[str, ...] = ()
    #: Its origin: kind of proposal, workflow job, proposal.
    kind: str = ""
    job: str = ""
    proposal: str = ""
    added_ms: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The term, then its aliases."""
        return (self.term, *self.aliases)

    def also(self, names: Iterable[str]) -> tuple[str, ...]:
        """The aliases and these names, without duplicates and the term itself."""
        known = {self.term: None, **dict.fromkeys(self.aliases)}
        known.update((name, None) for name in map(normalize_name, names) if name)
        return tuple(list(known)[1 : MOST_ALIASES + 1])

    def view(self) -> dict[str, Any]:
        """As in responses and in Redis."""
        return {
            TermField.TERM: self.term,
            TermField.ALIASES: list(self.aliases),
            TermField.KIND: self.kind,
            TermField.JOB: self.job,
            TermField.PROPOSAL: self.proposal,
            TermField.ADDED_MS: self.added_ms,
        }

    def to_json(self) -> bytes:
        return codec.dumps(self.view())

    @classmethod
    def from_json(cls, raw: bytes) -> TermEntry | None:
        """Parse a stored entry; None if it is invalid."""
        try:
            stored = codec.loads(raw)
            return cls(
                term=str(stored[TermField.TERM]),
                aliases=tuple(map(str, stored[TermField.ALIASES]))[:MOST_ALIASES],
                kind=str(stored.get(TermField.KIND, "")),
                job=str(stored.get(TermField.JOB, "")),
                proposal=str(stored.get(TermField.PROPOSAL, "")),
                added_ms=int(stored.get(TermField.ADDED_MS, 0)),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def parse_entries(stored: Mapping[bytes, bytes]) -> list[TermEntry]:
    """The valid entries of an ontology, sorted by field."""
    found = (TermEntry.from_json(stored[field]) for field in sorted(stored))
    return [entry for entry in found if entry is not None]


class TermPage(NamedTuple):
    """A page of terms by name; `next` is the cursor of the next page, if any."""

    entries: list[TermEntry]
    total: int
    next: str | None


class OntologyReader:
    """Reads the terms of all tenants; raises StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def list(
        self, keys: RagKeys, after: str = "", limit: int = DEFAULT_PAGE_SIZE
    ) -> TermPage:
        """A page of a namespace's terms by name, starting after the term `after`."""
        command: Any = self._client.hgetall(keys.ontology)
        entries = parse_entries(await read_reply(command) or {})
        start = term_key(after)
        rest = [entry for entry in entries if not start or term_key(entry.term) > start]
        page = rest[:limit]
        following = page[-1].term if len(rest) > limit else None
        return TermPage(page, len(entries), following)
