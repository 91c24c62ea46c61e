"""The data that the step `sources` stores for later steps: each source's text, compressed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice.common import codec
from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.features.workflows.memory_first import SOURCES
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.workflows.errors import StepError
from sluice.worker.features.workflows.memory_first.text.analysis import SourceText

if TYPE_CHECKING:
    from sluice.common.features.workflows.records import Item
    from sluice.worker.features.workflows.context import StepContext

_LEVEL: Final = 6


@dataclass(frozen=True)
class Source:
    """A source: an item of the step `sources`."""

    #: Id of the item; empty if it has none yet.
    id: str
    title: str
    bytes: int
    sha256: str
    lang: str
    chars: int
    media_type: str
    #: Path below the sources' root; empty for a text sent with the request.
    path: str = ""
    #: Id of the item with the same text.
    duplicate_of: str | None = None

    def payload(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "lang": self.lang,
            "chars": self.chars,
            "media_type": self.media_type,
            "path": self.path or None,
            "duplicate_of": self.duplicate_of,
        }

    @classmethod
    def of(cls, item: Item) -> Source:
        stored = codec.loads(item.payload)
        return cls(
            id=item.id,
            title=str(stored["title"]),
            bytes=int(stored["bytes"]),
            sha256=str(stored["sha256"]),
            lang=str(stored["lang"]),
            chars=int(stored["chars"]),
            media_type=str(stored["media_type"]),
            path=str(stored["path"] or ""),
            duplicate_of=stored["duplicate_of"],
        )


def pack_text(text: str) -> bytes:
    return zlib.compress(text.encode(), _LEVEL)


def pack_json(value: object) -> str:
    """Compressed JSON as a string, for embedding in JSON; about a tenth of the size."""
    raw = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(zlib.compress(raw, _LEVEL)).decode("ascii")


def unpack_json(value: str | bytes) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(value)))


def text_name(sha256: str) -> str:
    """Name under which a text is stored; equal texts share it."""
    return f"text.{sha256}"


async def load_sources(context: StepContext) -> list[Source]:
    """The sources of a job in order, without duplicates."""
    found = [Source.of(item) for item in await context.items(SOURCES)]
    return [source for source in found if source.duplicate_of is None]


async def load_text(context: StepContext, source: Source) -> str:
    raw = await context.get(SOURCES, text_name(source.sha256))
    if raw is None:
        raise StepError(
            WorkflowError.STEP_FAILED.value,
            f"the text of source {source.id} is gone; execute the step {SOURCES} again",
        )
    unpacked: bytes = await call_in_thread(zlib.decompress, raw)
    return unpacked.decode()


async def load_texts(context: StepContext, sources: Sequence[Source]) -> list[SourceText]:
    return [
        SourceText(source.id, source.lang, source.media_type, await load_text(context, source))
        for source in sources
    ]
