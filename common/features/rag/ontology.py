"""Terms of a namespace and their other names, as Redis keeps them. It only reads."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.rag import MOST_ALIASES, NAME_CHARS, RagKeys, TermField
from common.jobs.store import read_reply

#: Terms of a page, unless said.
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500


def normalize_name(name: str) -> str:
    """A name without needless blanks, and not too long."""
    return " ".join(unicodedata.normalize("NFC", name).split())[:NAME_CHARS].rstrip()


def term_key(name: str) -> str:
    """Under what a term is kept: the same for all ways to write it in capitals or small letters."""
    return " ".join(unicodedata.normalize("NFKC", normalize_name(name)).casefold().split())


@dataclass(frozen=True)
class TermEntry:
    """A term, and what else it is called."""

    term: str
    aliases: tuple[str, ...] = ()
    #: What it comes from: kind of proposal, workflow job, proposal.
    kind: str = ""
    job: str = ""
    proposal: str = ""
    added_ms: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """All that it is called, its own name first."""
        return (self.term, *self.aliases)

    def also(self, names: Iterable[str]) -> tuple[str, ...]:
        """Its aliases and these, none of them twice, nor the term itself."""
        known = {self.term: None, **dict.fromkeys(self.aliases)}
        known.update((name, None) for name in map(normalize_name, names) if name)
        return tuple(list(known)[1 : MOST_ALIASES + 1])

    def view(self) -> dict[str, Any]:
        """As answers show it and Redis keeps it."""
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
        """From Redis; None for what is no entry."""
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
    """The entries of an ontology by their fields; what is none is left out."""
    found = (TermEntry.from_json(stored[field]) for field in sorted(stored))
    return [entry for entry in found if entry is not None]


class TermPage(NamedTuple):
    """Some terms by name; `next` is the cursor to go on with, if any follow."""

    entries: list[TermEntry]
    total: int
    next: str | None


class OntologyReader:
    """Reads the terms of all tenants. Raises StoreUnavailable where Redis is away."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def list(
        self, keys: RagKeys, after: str = "", limit: int = DEFAULT_PAGE_SIZE
    ) -> TermPage:
        """A page of a namespace's terms, by name; those after the one that `after` names."""
        command: Any = self._client.hgetall(keys.ontology)
        entries = parse_entries(await read_reply(command) or {})
        start = term_key(after)
        rest = [entry for entry in entries if not start or term_key(entry.term) > start]
        page = rest[:limit]
        following = page[-1].term if len(rest) > limit else None
        return TermPage(page, len(entries), following)
