"""ImageReader: reads images; only the scripts write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.images import ImageKeys, ImageStatusField, Stage
from sluice.common.errors import StoreUnavailable
from sluice.common.features.images.records import ImageRecord, ImageRecordPage
from sluice.common.features.images.types import ImageProgress
from sluice.common.jobs.pagination import IndexCursor
from sluice.common.jobs.store import read_reply

_STAGES: Final = {stage.value: stage for stage in Stage}
_STATUS_FIELDS: Final = list(values_of(ImageStatusField))
#: Images read per round trip.
BATCH_SIZE: Final = 100
#: Index pages that one request reads at most; then its page ends early.
MOST_LOOKS: Final = 25
_CURSOR: Final = re.compile(r"\A([0-9]{1,16})-([A-Za-z0-9][A-Za-z0-9._-]{0,127})\Z")


class ImageReader:
    """Reads images of all tenants; raises StoreUnavailable."""

    def __init__(self, client: Redis, keys: ImageKeys | None = None) -> None:
        self._client = client
        self.keys = keys or ImageKeys()

    async def progress(self, image_ids: Sequence[str]) -> list[ImageProgress | None]:
        """The progress of each image; None if there is none."""
        pipe = self._client.pipeline(transaction=False)
        for image_id in image_ids:
            pipe.hmget(self.keys.status(image_id), _STATUS_FIELDS)
        replies = await read_reply(pipe.execute(raise_on_error=False)) if image_ids else []
        return [_progress(reply) for reply in _checked(replies)]

    async def record(self, image_id: str) -> ImageRecord | None:
        """One record; None if it does not exist."""
        return (await self.records((image_id,)))[0]

    async def records(self, image_ids: Sequence[str]) -> list[ImageRecord | None]:
        """The records of many images, in the same order."""
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
        """Whether each image has a record, valid or not."""
        found: list[bool] = []
        for start in range(0, len(image_ids), BATCH_SIZE):
            pipe = self._client.pipeline(transaction=False)
            for image_id in image_ids[start : start + BATCH_SIZE]:
                pipe.exists(self.keys.record(image_id))
            found += map(bool, await read_reply(pipe.execute()))
        return found

    async def list(self, tenant: str, before: str = "", limit: int = BATCH_SIZE) -> ImageRecordPage:
        """A page of a tenant's images ('' for all tenants), newest first.

        `before` is the `next` of the previous page; raises ValueError if it is invalid.
        """
        index = self.keys.index(tenant)
        cursor = IndexCursor(self._client, index, _parse_cursor(before), BATCH_SIZE)
        found: list[tuple[int, ImageRecord]] = []
        for _ in range(MOST_LOOKS):
            entries = await cursor.next()
            records = await self.records([image_id for _, image_id in entries])
            there = [(ms, record) for (ms, _), record in zip(entries, records) if record]
            found += there
            if len(found) > limit or cursor.exhausted:
                break
        page = found[:limit]
        following = ""
        if len(found) > limit and page:
            following = f"{page[-1][0]}-{page[-1][1].image_id}"
        elif not cursor.exhausted and cursor.last is not None:
            following = f"{cursor.last[0]}-{cursor.last[1]}"
        total = await read_reply(self._client.zcard(index)) or 0
        return ImageRecordPage([record for _, record in page], following, total)


def _checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Ignore keys of the wrong type, but raise other errors: a Redis that refuses commands, for
    example while loading, has not reported that there is nothing."""
    for reply in replies:
        if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
            raise StoreUnavailable(str(reply)) from reply
    return replies


def _parse_cursor(before: str) -> tuple[int, str] | None:
    if not before:
        return None
    match = _CURSOR.match(before)
    if match is None:
        raise ValueError("invalid cursor of a list of images")
    return int(match[1]), match[2]


def _progress(reply: Any) -> ImageProgress | None:
    """Parse a status hash; an unknown stage of a newer pipeline counts as `processing`."""
    if not isinstance(reply, list) or reply[0] is None:
        return None
    stage, progress, updated_at, error = (codec.decode_text(value or b"") for value in reply)
    return ImageProgress(_STAGES.get(stage, Stage.PROCESSING), progress or "0", updated_at, error)
