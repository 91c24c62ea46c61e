"""What the step `sources` leaves for the later ones: each source's text, packed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from common import codec
from common.contracts.workflow import WorkflowError
from common.workflow.memory_first import SOURCES
from worker.threads import call_in_thread
from worker.workflows.errors import StepError
from worker.workflows.memory_first.analysis import Text

if TYPE_CHECKING:
    from common.workflow.records import Item
    from worker.workflows.context import StepContext

_LEVEL: Final = 6


@dataclass(frozen=True)
class Source:
    """An item of the step `sources`."""

    #: Id of the item; empty while it has none.
    id: str
    title: str
    bytes: int
    sha256: str
    lang: str
    chars: int
    media_type: str
    #: Below the sources' root; empty for a text that came with the request.
    path: str = ""
    #: Id of the item that has the same text.
    duplicate_of: str | None = None

    def payload(self) -> dict[str, Any]:
        """As its item shows it."""
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
        """From its item."""
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


def packed(text: str) -> bytes:
    """A text as it is left."""
    return zlib.compress(text.encode(), _LEVEL)


def packed_json(value: object) -> str:
    """Anything as JSON in JSON: a tenth of its size."""
    raw = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(zlib.compress(raw, _LEVEL)).decode("ascii")


def unpacked_json(value: str | bytes) -> Any:
    """What `packed_json` packed."""
    return json.loads(zlib.decompress(base64.b64decode(value)))


def name_of(sha256: str) -> str:
    """Under which name a text is left: the same text, the same name."""
    return f"text.{sha256}"


async def sources(context: StepContext) -> list[Source]:
    """The sources of a job, in order, without those that are there twice."""
    found = [Source.of(item) for item in await context.items(SOURCES)]
    return [source for source in found if source.duplicate_of is None]


async def text_of(context: StepContext, source: Source) -> str:
    """The text of a source."""
    raw = await context.get(SOURCES, name_of(source.sha256))
    if raw is None:
        raise StepError(
            WorkflowError.STEP_FAILED.value,
            f"the text of source {source.id} is gone; execute the step {SOURCES} again",
        )
    unpacked: bytes = await call_in_thread(zlib.decompress, raw)
    return unpacked.decode()


async def texts(context: StepContext, wanted: Sequence[Source]) -> list[Text]:
    """The texts of some sources, in their order."""
    return [
        Text(source.id, source.lang, source.media_type, await text_of(context, source))
        for source in wanted
    ]
