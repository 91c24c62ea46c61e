"""Every key of the images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ImageKeys:
    """Every key of the images."""

    #: The home partition's (`JobKeys.tag`).
    tag: str = ""

    def status(self, image_id: str) -> str:
        """HASH, the progress; also what hints call an image."""
        return f"{self.tag}image:status:{image_id}"

    def upload(self, image_id: str) -> str:
        """STRING, the guard: something was uploaded, or is just now."""
        return f"{self.tag}image:upload:{image_id}"

    @property
    def results(self) -> str:
        """STREAM, how images ended."""
        return f"{self.tag}image:result"

    @property
    def dead_results(self) -> str:
        """STREAM, entries of the former that nobody could make sense of."""
        return f"{self.tag}image:result:dlq"

    def record(self, image_id: str) -> str:
        """HASH, what outlives the status."""
        return f"{self.tag}image:record:{image_id}"

    def deleted(self, image_id: str) -> str:
        """HASH, by a call's token what it deleted a moment ago, should its reply be lost."""
        return f"{self.tag}image:deleted:{image_id}"

    @property
    def inflight(self) -> str:
        """ZSET, images that were uploaded and are not settled, by when that was (ms)."""
        return f"{self.tag}image:inflight"

    def index(self, tenant: str = "") -> str:
        """ZSET, image ids by the time they were made; the nameless one has everybody's."""
        return f"{self.tag}image:index:{tenant}" if tenant else f"{self.tag}image:index"

    def idempotency(self, key: str, tenant: str = "") -> str:
        """STRING, `{fingerprint} {image_id}` that an Idempotency-Key has made."""
        owner = f"img.of:{tenant}" if tenant else "img"
        return f"{self.tag}idempotency.{owner}:{key}"

    @property
    def reconciler(self) -> str:
        """STRING, who looks after stranded images just now; one at a time."""
        return f"{self.tag}image:reconciler"

    @property
    def stores(self) -> str:
        """SET, ids of directories whose images have their records here."""
        return f"{self.tag}image:stores"


#: All keys above but remembered keys, with which only gateways have to do.
IMAGES: Final = "image:*"


def image_patterns(tag: str = "") -> tuple[str, ...]:
    """Patterns of all keys above."""
    return (f"{tag}{IMAGES}", f"{tag}idempotency.img:*", f"{tag}idempotency.img.of:*")
