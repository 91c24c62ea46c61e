"""RagStore: reads and writes the documents of namespaces in Redis."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.contracts.jobs import CHECKPOINT_PREFIX, LeaseField
from sluice.common.contracts.queue import Answer
from sluice.common.contracts.rag import MOST_NAMESPACES, ClaimFieldPrefix, DocumentField, RagKeys
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.features.rag.ontology import TermEntry, parse_entries
from sluice.common.jobs.store import Fence
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.scripts import (
    Argument,
    Script,
    lua_enum_names,
    read_lua,
    render_lua,
    run_script,
)
from sluice.common.text import plural
from sluice.worker.errors import AttemptLost, TransientError
from sluice.worker.features.rag.errors import CorruptNamespace, NamespaceFull, TooManyNamespaces
from sluice.worker.features.rag.text.chunking import Span

_LUA: Final = Path(__file__).with_name("lua")
_ENUMS: Final[dict[str, type]] = {
    "LEASE": LeaseField,
    "DOCUMENT": DocumentField,
    "CLAIM": ClaimFieldPrefix,
    "ANSWER": Answer,
}
_ANSWERS: Final = {answer.value.encode(): answer for answer in Answer}


class ScriptResult(NamedTuple):
    """Answer of a script, and the JSON returned with it."""

    answer: Answer
    value: bytes = b""


def _render(name: str) -> str:
    return render_lua(read_lua(_LUA, name), lua_enum_names(_ENUMS))


COMMIT: Final = Script(partial(_render, "commit"))
REMOVE: Final = Script(partial(_render, "remove"))
ATTACH: Final = Script(partial(_render, "attach"))


#: Step under which a job saves the outcome of its change to a namespace.
STORED_STEP: Final = "stored"
#: Time for which requests are retried while Redis is unavailable, before the attempt fails.
RETRY_FOR_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
#: Part of Redis' error for a key of the wrong type.
_WRONG_TYPE: Final = "WRONGTYPE"

T = TypeVar("T")


@dataclass(frozen=True)
class NewDocument:
    """A document ready to be stored."""

    record: DocumentRecord
    text: str
    chunks: Sequence[Span]
    #: One little-endian float32 row per chunk; may be empty.
    vectors: bytes = b""

    @property
    def outcome(self) -> dict[str, Any]:
        """Result members of the job."""
        record = self.record
        return {
            "document_id": record.id,
            DocumentField.TITLE: record.title,
            DocumentField.CHUNKS: record.chunks,
            DocumentField.CHARS: record.chars,
            DocumentField.EMBEDDER: record.embedder,
        }


class StoredText(NamedTuple):
    """Stored text and chunks of a document."""

    record: DocumentRecord
    text: str
    chunks: list[Span]


class StoredVectors(NamedTuple):
    """Stored vectors of a document."""

    raw_record: bytes
    record: DocumentRecord
    rows: bytes


class ByteSpan(NamedTuple):
    """A part of a stored text, in bytes, as GETRANGE needs it."""

    document_id: str
    start: int
    end: int


@dataclass(frozen=True)
class WriteGuard:
    """Fields that a hash must have at the time of a change."""

    key: str
    expected: Mapping[str, str]


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class RagStore:
    """Retries while Redis is unavailable, then raises TransientError."""

    def __init__(
        self, client: Redis, most_documents: int, retry_for_s: float = RETRY_FOR_S
    ) -> None:
        self._client = client
        self._most_documents = most_documents
        self._retry_for_s = retry_for_s

    # -- writes -----------------------------------------------------------------------------------

    async def commit(
        self, fence: Fence, job_id: str, keys: RagKeys, document: NewDocument
    ) -> dict[str, Any]:
        """Store a document, replacing one with the same id; returns the outcome for the job.

        Idempotent over retries and attempts: the change is applied once.
        """
        step = f"{CHECKPOINT_PREFIX}{STORED_STEP}"
        return _parse_outcome(await self._commit(fence, keys, document, keys.upload(job_id), step))

    async def add(
        self, fence: Fence, job_id: str, keys: RagKeys, document: NewDocument, guard: WriteGuard
    ) -> Answer:
        """Store a document unless its id exists; one job may add many.

        Returns OK, CONFLICT if the id exists, or GONE if the guard no longer holds.
        """
        done = await self._commit(fence, keys, document, keys.upload(job_id), "", guard)
        if done.answer is Answer.LOST:
            raise AttemptLost
        return Answer.OK if done.answer is Answer.ALREADY else done.answer

    async def _commit(
        self,
        fence: Fence,
        keys: RagKeys,
        document: NewDocument,
        upload: str,
        step: str,
        guard: WriteGuard | None = None,
    ) -> ScriptResult:
        record = document.record
        view = record.view()
        del view[DocumentField.ADDED_TS]  # set by the script
        outcome = document.outcome
        key_names = (*_keys_of(fence, keys, record.id), upload, *((guard.key,) if guard else ()))
        args: list[str | bytes | int] = [
            *(fence.attempt, fence.token, step, keys.namespace, record.id),
            codec.dumps(view),
            document.text.encode(),
            codec.dumps([list(span) for span in document.chunks]),
            *(document.vectors, self._most_documents, MOST_NAMESPACES),
            codec.dumps({**outcome, "replaced": False}),
            codec.dumps({**outcome, "replaced": True}),
            record.revision if guard else "",
            *chain.from_iterable(guard.expected.items() if guard else ()),
        ]
        done = await self._run(COMMIT, key_names, args)
        if done.answer is Answer.FULL:
            raise NamespaceFull(
                f"namespace {keys.namespace!r} is full ({plural(self._most_documents, 'document')},"
                " RAG_MAX_DOCUMENTS); delete some, or use another namespace"
            )
        if done.answer is Answer.QUOTA:
            raise TooManyNamespaces(
                f"the limit of {MOST_NAMESPACES} namespaces is reached; delete all documents of one"
            )
        return done

    async def remove(self, fence: Fence, keys: RagKeys, document_id: str) -> dict[str, Any]:
        """Delete a document; returns the outcome for the job."""
        args = (
            *(
                fence.attempt,
                fence.token,
                f"{CHECKPOINT_PREFIX}{STORED_STEP}",
                keys.namespace,
                document_id,
            ),
            codec.dumps({"deleted": True}),
            codec.dumps({"deleted": False}),
        )
        more = (keys.vector_set, keys.ontology, keys.claims)
        key_names = (*_keys_of(fence, keys, document_id), *more)
        return _parse_outcome(await self._run(REMOVE, key_names, args))

    async def attach(
        self, keys: RagKeys, raw_record: bytes, record: DocumentRecord, embedder: str, rows: bytes
    ) -> bool:
        """Attach vectors to a document; returns False if it has changed meanwhile."""
        after = record.with_embedder(embedder).to_json()
        key_names = (keys.documents, keys.order, keys.version, keys.vectors(record.id))
        args = (record.id, raw_record, after, rows)
        done = await self._run(ATTACH, key_names, args)
        return done.answer is Answer.OK

    # -- reads ------------------------------------------------------------------------------------

    async def upload(self, keys: RagKeys, job_id: str) -> bytes | None:
        """The uploaded body of a job."""
        return await self._retry(lambda: self._client.get(keys.upload(job_id)))

    async def drop_upload(self, keys: RagKeys, job_id: str) -> None:
        await self._retry(lambda: self._client.delete(keys.upload(job_id)))

    async def version(self, keys: RagKeys) -> int:
        """Version of a namespace; 0 if it is empty."""
        raw = await self._retry(lambda: self._client.get(keys.version))
        return codec.parse_int(raw or b"")

    async def ontology_version(self, keys: RagKeys) -> bytes:
        """Version of the namespace at the last change of its ontology; empty if it has none."""
        return await self._retry(lambda: self._client.get(keys.ontology_version)) or b""

    async def ontology(self, keys: RagKeys) -> list[TermEntry]:
        """The terms of a namespace."""
        [stored] = await self._transaction(("HGETALL", keys.ontology))
        return parse_entries(stored)

    async def changed(self, keys: RagKeys, since: int, most: int) -> list[tuple[str, int]]:
        """The next documents that changed after a version, with the version of each change."""
        found = await self._retry(
            lambda: self._client.zrange(
                keys.order, f"({since}", "+inf", byscore=True, offset=0, num=most, withscores=True
            )
        )
        return [(codec.decode_text(name), int(score)) for name, score in found]

    async def count(self, keys: RagKeys) -> int:
        return await self._retry(lambda: self._client.zcard(keys.order))

    async def ids(self, keys: RagKeys) -> set[str]:
        found = await self._retry(lambda: self._client.zrange(keys.order, 0, -1))
        return {codec.decode_text(name) for name in found}

    async def records(self, keys: RagKeys, document_ids: Sequence[str]) -> list[DocumentRecord]:
        """Records of those documents that exist."""
        [found] = await self._transaction(("HMGET", keys.documents, *document_ids))
        return [record for record in map(_record, found) if record is not None]

    async def texts(self, keys: RagKeys, document_ids: Sequence[str]) -> list[StoredText]:
        """Texts of those documents that exist; each is consistent with its record."""
        raw, *rest = await self._transaction(
            ("HMGET", keys.documents, *document_ids),
            *(("GET", keys.text(document_id)) for document_id in document_ids),
            *(("GET", keys.chunks(document_id)) for document_id in document_ids),
        )
        texts, chunks = rest[: len(document_ids)], rest[len(document_ids) :]
        return [
            StoredText(record, codec.decode_text(text or b""), _spans(spans))
            for record, text, spans in zip(map(_record, raw), texts, chunks)
            if record is not None
        ]

    async def vectors(self, keys: RagKeys, document_ids: Sequence[str]) -> list[StoredVectors]:
        """Vectors of those documents that exist; each is consistent with its record."""
        raw, *rows = await self._transaction(
            ("HMGET", keys.documents, *document_ids),
            *(("GET", keys.vectors(document_id)) for document_id in document_ids),
        )
        return [
            StoredVectors(whole, record, each or b"")
            for whole, record, each in zip(raw, map(_record, raw), rows)
            if record is not None
        ]

    async def cut(
        self, keys: RagKeys, spans: Sequence[ByteSpan]
    ) -> list[tuple[DocumentRecord | None, str]]:
        """Parts of texts, each with the record of its document at the same moment."""
        if not spans:
            return []
        raw, *parts = await self._transaction(
            ("HMGET", keys.documents, *(span.document_id for span in spans)),
            *(
                ("GETRANGE", keys.text(span.document_id), span.start, span.end - 1)
                for span in spans
            ),
        )
        return [(record, codec.decode_text(part)) for record, part in zip(map(_record, raw), parts)]

    async def _transaction(self, *commands: tuple[Any, ...]) -> list[Any]:
        async def run() -> list[Any]:
            pipe = self._client.pipeline(transaction=True)
            for command in commands:
                pipe.execute_command(*command)
            found: list[Any] = await pipe.execute()
            return found

        return await self._retry(run)

    async def _run(
        self, script: Script, keys: Sequence[str], args: Sequence[Argument]
    ) -> ScriptResult:
        reply = await self._retry(lambda: run_script(self._client, script, keys, args))
        return ScriptResult(_ANSWERS[reply[0]], *reply[1:])

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + self._retry_for_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await work()
            except TRANSIENT_ERRORS as error:
                if time.monotonic() + pause_s > deadline:
                    raise TransientError(f"Redis is unavailable: {error}") from error
            except RedisError as error:
                if _WRONG_TYPE in str(error):
                    raise CorruptNamespace(
                        f"a key of the namespace has the wrong type: {error}; delete it"
                    ) from error
                raise TransientError(f"Redis refused the command: {error}") from error
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _keys_of(fence: Fence, keys: RagKeys, document_id: str) -> tuple[str, ...]:
    return (
        *(fence.lease_key, keys.documents, keys.order, keys.version),
        keys.namespaces,
        *(keys.text(document_id), keys.chunks(document_id), keys.vectors(document_id)),
    )


def _parse_outcome(done: ScriptResult) -> dict[str, Any]:
    if done.answer is Answer.LOST:
        raise AttemptLost
    outcome: dict[str, Any] = codec.loads(done.value)
    return outcome


def _record(raw: bytes | None) -> DocumentRecord | None:
    return None if raw is None else DocumentRecord.from_json(raw)


def _spans(raw: bytes | None) -> list[Span]:
    """The stored chunks; empty if the data is invalid."""
    try:
        return [Span(int(start), int(end)) for start, end in codec.loads(raw or b"[]")]
    except (ValueError, TypeError):
        return []
