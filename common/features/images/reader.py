"""ImageReader: what there is of images. It only reads; the scripts write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from common import codec
from common.contracts import values_of
from common.contracts.images import ImageKeys, ImageStatusField, Stage
from common.errors import StoreUnavailable
from common.features.images.records import ImageRecord, ImageRecordPage
from common.features.images.types import ImageProgress
from common.jobs.pagination import IndexCursor
from common.jobs.store import read_reply

_STAGES: Final = {stage.value: stage for stage in Stage}
_STATUS_FIELDS: Final = list(values_of(ImageStatusField))
#: So many images are read at once.
BATCH_SIZE: Final = 100
#: How often one request looks at so many places of an index: after that the page ends early.
MOST_LOOKS: Final = 25
_CURSOR: Final = re.compile(r"\A([0-9]{1,16})-([A-Za-z0-9][A-Za-z0-9._-]{0,127})\Z")


class ImageReader:
    """Reads images of all tenants. Raises StoreUnavailable where Redis is away."""

    def __init__(self, client: Redis, keys: ImageKeys | None = None) -> None:
        self._client = client
        self.keys = keys or ImageKeys()

    async def progress(self, image_ids: Sequence[str]) -> list[ImageProgress | None]:
        """What `image:status:{image_id}` says of each; None where there is none."""
        pipe = self._client.pipeline(transaction=False)
        for image_id in image_ids:
            pipe.hmget(self.keys.status(image_id), _STATUS_FIELDS)
        replies = await read_reply(pipe.execute(raise_on_error=False)) if image_ids else []
        return [_progress(reply) for reply in _checked(replies)]

    async def record(self, image_id: str) -> ImageRecord | None:
        """One record; None where there is none."""
        return (await self.records((image_id,)))[0]

    async def records(self, image_ids: Sequence[str]) -> list[ImageRecord | None]:
        """Many of them, one for one."""
        found: list[ImageRecord | None] = []
        for start in range(0, len(image_ids), BATCH_SIZE):
            some = image_ids[start : start + BATCH_SIZE]
            pipe = self._client.pipeline(transaction=False)
            for image_id in some:
                pipe.hgetall(self.keys.record(image_id))
            replies = _checked(await read_reply(pipe.execute(raise_on_error=False)))
            for image_id, stored in zip(some, replies):
                there = isinstance(stored, dict) and stored
                found.append(ImageRecord.from_hash(image_id, stored) if there else None)
        return found

    async def records_exist(self, image_ids: Sequence[str]) -> list[bool]:
        """Whether there is a record of each, whatever it says."""
        found: list[bool] = []
        for start in range(0, len(image_ids), BATCH_SIZE):
            pipe = self._client.pipeline(transaction=False)
            for image_id in image_ids[start : start + BATCH_SIZE]:
                pipe.exists(self.keys.record(image_id))
            found += map(bool, await read_reply(pipe.execute()))
        return found

    async def list(self, tenant: str, before: str = "", limit: int = BATCH_SIZE) -> ImageRecordPage:
        """A tenant's images (everybody's for ''), newest first, from where a page ended.

        Raises ValueError for a `before` that no page gave.
        """
        index = self.keys.index(tenant)
        walk = IndexCursor(self._client, index, _place(before), BATCH_SIZE)
        found: list[tuple[int, ImageRecord]] = []
        for _ in range(MOST_LOOKS):
            entries = await walk.next()
            records = await self.records([image_id for _, image_id in entries])
            there = [(ms, record) for (ms, _), record in zip(entries, records) if record]
            found += there
            if len(found) > limit or walk.exhausted:
                break
        wanted = found[:limit]
        following = ""
        if len(found) > limit and wanted:
            following = f"{wanted[-1][0]}-{wanted[-1][1].image_id}"
        elif not walk.exhausted and walk.last is not None:
            following = f"{walk.last[0]}-{walk.last[1]}"
        total = await read_reply(self._client.zcard(index)) or 0
        return ImageRecordPage([record for _, record in wanted], following, total)


def _checked(replies: Sequence[Any]) -> Sequence[Any]:
    """A key that is something else is none of ours; a Redis that refuses, as it does while it
    loads, has not said that there is nothing."""
    for reply in replies:
        if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
            raise StoreUnavailable(str(reply)) from reply
    return replies


def _place(before: str) -> tuple[int, str] | None:
    if not before:
        return None
    match = _CURSOR.match(before)
    if match is None:
        raise ValueError("no place in a list of images")
    return int(match[1]), match[2]


def _progress(reply: Any) -> ImageProgress | None:
    """A stage that a newer pipeline may have counts as one on the way."""
    if not isinstance(reply, list) or reply[0] is None:
        return None
    stage, progress, updated_at, error = (codec.decode_text(value or b"") for value in reply)
    return ImageProgress(_STAGES.get(stage, Stage.PROCESSING), progress or "0", updated_at, error)
