"""State of a random history of images in Redis, and its invariants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

from common import codec
from common.contracts.images import STAGE_PROGRESS, ImageKeys, Stage
from common.contracts.jobs import JobKeys
from tests.support.store.base import texts
from tests.support.store.images import FAILURE_FIELDS, RESULT_FIELDS, STATUS_TTL_S

JOBS = JobKeys()
KEYS = ImageKeys()
#: Fields that only contain a time.
OF_THE_MOMENT = {"updated_at", "upload_deadline_ms"}
STAGE_OF = {"processed": "done", "failed": "failed", "queued": "queued"}
ON_THE_WAY = {stage.value for stage in Stage} - {"done", "failed"}


@dataclass
class View:
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


def read_view(client: redis.Redis, image_id: str, tenant: str) -> View:
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
    return View(
        record=texts(record),
        shown=texts(shown),
        guard=guard,
        under_way=under_way is not None,
        listed=(first is not None, second is not None),
        entries={key: fields for key, fields in results.items() if fields["image_id"] == image_id},
        jobs=[(args["upload_id"], job) for job, args in messages if args["image_id"] == image_id],
        ttls=tuple(ttls),
    )


def check(client: redis.Redis, view: View, guard_may_be_gone: bool) -> None:
    """Check every invariant of one image."""
    uploads = [upload for upload, _ in view.jobs]
    assert len(set(uploads)) == len(uploads)  # one job per upload
    for fields in view.entries.values():
        wanted = RESULT_FIELDS if fields["status"] == "processed" else FAILURE_FIELDS
        assert list(fields) == wanted
    if not view.record:
        assert (view.shown, view.guard, view.under_way) == ({}, None, False)
        assert view.listed == (False, False)
        return
    assert view.listed == (True, True)
    check_shown(view)
    check_end(view)
    check_upload(client, view, guard_may_be_gone)
    check_times(view)


def check_shown(view: View) -> None:
    """The status has exactly the contract's fields, and agrees with the record."""
    shown = view.shown
    if not shown:
        return  # it expired
    stage = shown["stage"]
    assert set(shown) == {"stage", "progress", "updated_at"} | (
        {"error"} if stage == "failed" else set()
    )
    assert shown["progress"] == STAGE_PROGRESS[Stage(stage)]
    if view.state == "processing":
        assert stage in ON_THE_WAY
    else:
        assert stage == STAGE_OF[view.state]
    if stage == "failed":
        assert shown["error"] == view.record["error_message"]


def check_end(view: View) -> None:
    """Never done without a result entry: record, outcome and entry agree."""
    record = view.record
    if view.ended:
        entry = view.entries[record["result_entry_id"]]
        assert entry["status"] == record["status"]
        assert {name: record[name] for name in entry} == entry
        assert codec.loads(record["outcome"].encode()) == entry
        codec.loads(record["details"].encode())
        others = set(RESULT_FIELDS + FAILURE_FIELDS) - set(entry)
        assert not others & set(record)
    else:
        left = {"outcome", "details", "result_entry_id", "sha256", "error_code", "failed_at"}
        assert not left & set(record)


def check_upload(client: redis.Redis, view: View, guard_may_be_gone: bool) -> None:
    """Guard and record agree, and so do record, in-flight images and queue."""
    record = view.record
    assert view.under_way == (view.state == "processing")
    if view.guard is not None:
        assert view.guard == b"claimed"
    if view.upload or view.ended:
        assert view.guard is not None or guard_may_be_gone
    else:
        assert view.guard is None
    if view.state == "processing":
        assert (view.upload, record["job_id"]) in view.jobs
        assert client.hget(JOBS.job(record["job_id"]), "status") == b"queued"
    if view.state == "queued":
        assert not {"job_id", "source_bytes", "source_sha256", "uploaded_type"} & set(record)
        assert ("upload_deadline_ms" in record) == (view.upload != "")
    else:
        assert "upload_deadline_ms" not in record


def check_times(view: View) -> None:
    """Everything expires, and an image without an upload expires soon."""
    record, shown, guard = view.ttls
    assert -1 not in view.ttls
    assert shown <= STATUS_TTL_S
    assert guard <= STATUS_TTL_S
    ever = view.state != "queued" or view.record.get("results_after", "0-0") != "0-0"
    assert (record > STATUS_TTL_S) == ever


def check_globals(client: redis.Redis) -> None:
    """Every key expires, or is trimmed."""
    capped = {KEYS.results.encode(), KEYS.dead_results.encode()}
    names = [name for name in client.scan_iter("image:*", count=1000) if name not in capped]
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.ttl(name)
    assert [name for name, ttl in zip(names, pipe.execute(), strict=True) if ttl < 0] == []


def goes_forward(before: View, after: View) -> bool:
    """True if progress has not decreased within one upload."""
    same = before.upload == after.upload and before.state == after.state == "processing"
    if not (same and before.shown and after.shown):
        return True
    return int(after.shown["progress"]) >= int(before.shown["progress"])
