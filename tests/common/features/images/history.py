"""State of a random history of images in Redis, and its invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis

from common import codec
from common.contracts.images import STAGE_PROGRESS, ImageKeys, Stage
from common.contracts.jobs import JobKeys
from common.features.images.scripts import IMAGE_SCRIPT
from common.features.images.store import ImageStore
from common.redis.scripts import Record, Reply, unpack
from tests.common.features.images.kit import FAILURE_FIELDS, RESULT_FIELDS, STATUS_TTL_S, texts

JOBS = JobKeys()
KEYS = ImageKeys()
#: Fields that only contain a time.
OF_THE_MOMENT = {"updated_at", "upload_deadline_ms"}
STAGE_OF = {"processed": "done", "failed": "failed", "queued": "queued"}
ON_THE_WAY = {stage.value for stage in Stage} - {"done", "failed"}


class Script:
    """Replaces a batcher: runs each record at once, over a blocking client."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        #: The last call, for a repetition after a lost reply.
        self.last: Record | None = None

    async def call(self, record: Record) -> Reply:
        self.last = record
        return self.send(record)

    def send(self, record: Record) -> Reply:
        args = IMAGE_SCRIPT.pack(JOBS, [record])
        try:
            raw = self._client.evalsha(IMAGE_SCRIPT.sha, *args)  # type: ignore[arg-type]
        except redis.exceptions.NoScriptError:
            raw = self._client.eval(IMAGE_SCRIPT.source, *args)  # type: ignore[arg-type]
        [reply] = [unpack(each) for each in raw]  # type: ignore[union-attr]
        assert isinstance(reply, Reply), reply
        return reply


@dataclass
class Sight:
    """An image as stored in Redis, read at once."""

    record: dict[str, str]
    shown: dict[str, str]
    guard: bytes | None
    under_way: bool
    listed: tuple[bool, bool]
    #: Id and fields of its result entries, and upload and id of its core jobs.
    entries: dict[str, dict[str, str]]
    jobs: list[tuple[str, str]]
    ttls: tuple[int, ...]

    @property
    def state(self) -> str:
        return self.record.get("status", "")

    @property
    def upload(self) -> str:
        return self.record.get("upload_id", "")

    @property
    def ended(self) -> bool:
        return self.state in ("processed", "failed")

    def content(self) -> tuple[Any, ...]:
        """Everything except times."""
        said = [
            {name: value for name, value in fields.items() if name not in OF_THE_MOMENT}
            for fields in (self.record, self.shown)
        ]
        return (*said, self.guard, self.under_way, self.listed, self.entries, self.jobs)


def look(client: redis.Redis, image_id: str, tenant: str) -> Sight:
    """Read a whole image."""
    pipe = client.pipeline(transaction=False)
    own = (KEYS.record(image_id), KEYS.status(image_id), KEYS.upload(image_id))
    pipe.hgetall(own[0])
    pipe.hgetall(own[1])
    pipe.get(own[2])
    pipe.zscore(KEYS.inflight, image_id)
    pipe.zscore(KEYS.index(), image_id)
    pipe.zscore(KEYS.index(tenant), image_id)
    pipe.xrange(KEYS.results)
    pipe.xrange(JOBS.queue)
    for key in own:
        pipe.ttl(key)
    record, shown, guard, under_way, first, second, entries, queue, *ttls = pipe.execute()
    messages = [
        (fields[b"job_id"].decode(), codec.loads(fields[b"payload"])["args"]) for _, fields in queue
    ]
    results = {entry_id.decode(): texts(fields) for entry_id, fields in entries}
    return Sight(
        record=texts(record),
        shown=texts(shown),
        guard=guard,
        under_way=under_way is not None,
        listed=(first is not None, second is not None),
        entries={key: fields for key, fields in results.items() if fields["image_id"] == image_id},
        jobs=[(args["upload_id"], job) for job, args in messages if args["image_id"] == image_id],
        ttls=tuple(ttls),
    )


def check(client: redis.Redis, sight: Sight, guard_may_be_gone: bool) -> None:
    """Check every invariant of one image."""
    uploads = [upload for upload, _ in sight.jobs]
    assert len(set(uploads)) == len(uploads)  # one job per upload
    for fields in sight.entries.values():
        wanted = RESULT_FIELDS if fields["status"] == "processed" else FAILURE_FIELDS
        assert list(fields) == wanted
    if not sight.record:
        assert (sight.shown, sight.guard, sight.under_way) == ({}, None, False)
        assert sight.listed == (False, False)
        return
    assert sight.listed == (True, True)
    check_shown(sight)
    check_end(sight)
    check_upload(client, sight, guard_may_be_gone)
    check_times(sight)


def check_shown(sight: Sight) -> None:
    """The status has exactly the contract's fields, and agrees with the record."""
    shown = sight.shown
    if not shown:
        return  # it expired
    stage = shown["stage"]
    assert set(shown) == {"stage", "progress", "updated_at"} | (
        {"error"} if stage == "failed" else set()
    )
    assert shown["progress"] == STAGE_PROGRESS[Stage(stage)]
    if sight.state == "processing":
        assert stage in ON_THE_WAY
    else:
        assert stage == STAGE_OF[sight.state]
    if stage == "failed":
        assert shown["error"] == sight.record["error_message"]


def check_end(sight: Sight) -> None:
    """Never done without a result entry: record, outcome and entry agree."""
    record = sight.record
    if sight.ended:
        entry = sight.entries[record["result_entry_id"]]
        assert entry["status"] == record["status"]
        assert {name: record[name] for name in entry} == entry
        assert codec.loads(record["outcome"].encode()) == entry
        codec.loads(record["details"].encode())
        others = set(RESULT_FIELDS + FAILURE_FIELDS) - set(entry)
        assert not others & set(record)
    else:
        left = {"outcome", "details", "result_entry_id", "sha256", "error_code", "failed_at"}
        assert not left & set(record)


def check_upload(client: redis.Redis, sight: Sight, guard_may_be_gone: bool) -> None:
    """Guard and record agree, and so do record, in-flight images and queue."""
    record = sight.record
    assert sight.under_way == (sight.state == "processing")
    if sight.guard is not None:
        assert sight.guard == b"claimed"
    if sight.upload or sight.ended:
        assert sight.guard is not None or guard_may_be_gone
    else:
        assert sight.guard is None
    if sight.state == "processing":
        assert (sight.upload, record["job_id"]) in sight.jobs
        assert client.hget(JOBS.job(record["job_id"]), "status") == b"queued"
    if sight.state == "queued":
        assert not {"job_id", "source_bytes", "source_sha256", "uploaded_type"} & set(record)
        assert ("upload_deadline_ms" in record) == (sight.upload != "")
    else:
        assert "upload_deadline_ms" not in record


def check_times(sight: Sight) -> None:
    """Everything expires, and an image without an upload expires soon."""
    record, shown, guard = sight.ttls
    assert -1 not in sight.ttls
    assert shown <= STATUS_TTL_S
    assert guard <= STATUS_TTL_S
    ever = sight.state != "queued" or sight.record.get("results_after", "0-0") != "0-0"
    assert (record > STATUS_TTL_S) == ever


def check_globals(client: redis.Redis) -> None:
    """Every key expires, or is trimmed."""
    capped = {KEYS.results.encode(), KEYS.dead_results.encode()}
    names = [name for name in client.scan_iter("image:*", count=1000) if name not in capped]
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.ttl(name)
    assert [name for name, ttl in zip(names, pipe.execute(), strict=True) if ttl < 0] == []


def goes_forward(before: Sight, after: Sight) -> bool:
    """True if progress has not decreased within one upload."""
    same = before.upload == after.upload and before.state == after.state == "processing"
    if not (same and before.shown and after.shown):
        return True
    return int(after.shown["progress"]) >= int(before.shown["progress"])


def store_over(client: redis.Redis) -> tuple[ImageStore, Script]:
    """A store whose coroutines never suspend."""
    script = Script(client)
    return ImageStore(client, JOBS, script), script  # type: ignore[arg-type]


Facts = Mapping[str, Any]
