"""A random history of images: its state in Redis, its invariants and its operations."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import redis

from sluice.common import codec
from sluice.common.contracts.images import STAGE_PROGRESS, ErrorCode, ImageKeys, Stage
from sluice.common.features.images.scripts import IMAGE_SCRIPT
from sluice.common.features.images.store import ImageStore
from sluice.common.features.images.types import (
    ImageAnswer,
    ImageOutcome,
    ProcessingAttempt,
    ProcessingFailure,
)
from sluice.common.jobs.store import Fence
from tests.support.histories.machine import JOBS, ObservedHistory, now
from tests.support.store.base import texts
from tests.support.store.images import (
    ADMISSION,
    ALREADY,
    CONFLICT,
    FAILURE_FIELDS,
    GROUP,
    HOLD_MS,
    LOST,
    MISSING,
    OK,
    RESULT_FIELDS,
    STAGES,
    STATUS_TTL_S,
    failure_fields,
    new_image,
    processed,
    result_fields,
    uploaded,
)

KEYS = ImageKeys()
TENANT = "acme"
UPLOADING = ("hold", "release", "submit", "submit", "submit", "full")
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


def read_view(client: redis.Redis, image_id: str) -> View:
    """Read a whole image."""
    pipe = client.pipeline(transaction=False)
    own = (KEYS.record(image_id), KEYS.status(image_id), KEYS.upload(image_id))
    pipe.hgetall(own[0])
    pipe.hgetall(own[1])
    pipe.get(own[2])
    pipe.zscore(KEYS.inflight, image_id)
    pipe.zscore(KEYS.index(), image_id)
    pipe.zscore(KEYS.index(TENANT), image_id)
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


def place_of(entry_id: str) -> tuple[int, int]:
    found = codec.parse_stream_id(entry_id)
    assert found is not None
    return found


_T = TypeVar("_T")


class ImageHistory(ObservedHistory[View]):
    """Clients create, delete and reopen images. Gateways claim, hold, release and submit uploads,
    also superseded ones. Workers advance and end attempts, also superseded ones. A third-party
    pipeline writes results, and consumers read them in any order, late and twice. Guards, statuses
    and deadlines expire. An image is never done without a result entry, an upload has one job and
    one end, guard and record agree, progress never decreases, and everything expires.

    Operations that advance an image are chosen more often than those that end it.
    """

    lua = IMAGE_SCRIPT
    operations: ClassVar[dict[str, int]] = {
        "create": 2,
        "claim": 3,
        "upload": 4,
        "advance": 4,
        "end": 2,
        "reopen": 3,
        "delete": 1,
        "persist": 2,
        "add_third_party_entry": 1,
        "expire": 2,
    }

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.store = ImageStore(client, JOBS, self.script)
        #: All uploads and attempts so far, by image.
        self.uploads: dict[str, list[str]] = defaultdict(list)
        self.attempts: dict[str, list[ProcessingAttempt]] = defaultdict(list)
        #: Images whose guard was removed or expired.
        self.unguarded: set[str] = set()
        #: Entries that existed when an image was reopened: of earlier uploads.
        self.past: dict[str, set[str]] = {}
        #: Entries of Sluice's pipeline by image and upload: one each.
        self.published: set[tuple[str, str]] = set()
        client.xgroup_create(KEYS.results, GROUP, id="0", mkstream=True)

    def name(self) -> str:
        return f"00000000-0000-4000-8000-{next(self.numbers):012x}"

    def image(self) -> str:
        return self.one_of([image_id for image_id, view in self.views.items() if view.record])

    def newest(self, known: list[_T], share: float = 0.8) -> _T:
        """Preferably the newest rather than an old one, which may be superseded."""
        return known[-1] if self.chance(share) else self.rng.choice(known)

    def read(self, name: str) -> View:
        return read_view(self.client, name)

    def has_no_effect(self, outcome: ImageOutcome) -> bool:
        return outcome.answer is not OK

    def notice(self, name: str, after: View) -> None:
        before = self.views.get(name, after)
        check(self.client, after, name in self.unguarded)
        check_globals(self.client)
        assert goes_forward(before, after)
        counts = after.record.get("result_entry_id", "")
        assert counts not in self.past.get(name, ())
        if before.ended and after.ended:
            assert place_of(counts) >= place_of(before.record["result_entry_id"])
        if after.guard is not None:
            self.unguarded.discard(name)
        super().notice(name, after)

    # -- gateways --------------------------------------------------------------------------

    def start(self) -> None:
        self.create()
        self.claim()

    def create(self) -> None:
        if sum(bool(view.record) for view in self.views.values()) < 3:
            new = new_image(image_id=self.name(), tenant=TENANT)
            assert now(self.store.create(new)).answer is OK
            self.notice(new.image_id, self.read(new.image_id))

    def claim(self) -> None:
        image_id, upload_id = self.image(), f"{next(self.numbers):016x}"
        before = self.views[image_id]
        answer = self.act(image_id, self.store.claim(image_id, upload_id, HOLD_MS)).answer
        stale = before.upload and before.record.get("upload_deadline_ms") == "1"
        free = before.state == "queued" and (before.guard is None or stale)
        assert answer is ((OK if free else CONFLICT) if before.record else MISSING)
        if answer is OK:
            self.uploads[image_id].append(upload_id)
            assert self.views[image_id].upload == upload_id

    def upload(self) -> None:
        """Hold, release or submit an upload."""
        image_id, what = self.image(), self.rng.choice(UPLOADING)
        if not self.uploads[image_id]:
            return
        before, upload_id = self.views[image_id], self.newest(self.uploads[image_id])
        current = before.state == "queued" and before.upload == upload_id
        if what == "hold":
            outcome = self.act(image_id, self.store.extend_claim(image_id, upload_id, HOLD_MS))
            assert outcome.answer is (OK if current else LOST)
        elif what == "release":
            free = before.state == "queued" and before.guard is None
            outcome = self.act(image_id, self.store.release(image_id, upload_id))
            assert outcome.answer is (OK if current or free else LOST)
        else:
            self.submit(image_id, upload_id, current, what == "full")

    def submit(self, image_id: str, upload_id: str, current: bool, full: bool) -> None:
        before = self.views[image_id]
        admission = ADMISSION._replace(backlog_limit=0) if full else ADMISSION
        wanted = uploaded(image_id, upload_id, job_id=self.name())
        outcome = self.act(image_id, self.store.submit(wanted, admission))
        if not before.record:
            assert outcome.answer is MISSING
        elif before.upload == upload_id and "job_id" in before.record:
            assert outcome == (OK, {"job_id": before.record["job_id"]})
        elif not current:
            assert outcome.answer is LOST
        elif full:
            assert outcome.answer is ImageAnswer.FULL
        else:
            assert outcome == (OK, {"job_id": wanted.job_id})
            self.begin(image_id, upload_id, 1)

    def reopen(self) -> None:
        image_id = self.image()
        before = self.views[image_id]
        outcome = self.act(image_id, self.store.reopen(image_id))
        if outcome.answer is OK:
            after = self.views[image_id]
            assert (after.state, after.upload, after.guard) == ("queued", "", None)
            if before.state == "failed":
                self.past[image_id] = set(before.entries)
        else:
            assert outcome.answer is (CONFLICT if before.record else MISSING)
            assert before.state != "failed"

    def delete(self) -> None:
        if self.chance(0.8):
            return
        image_id = self.image()
        before = self.views[image_id]
        outcome = self.act(image_id, self.store.delete(image_id))
        assert outcome.answer is (OK if before.record else MISSING)
        if before.record:
            assert outcome.facts.get("upload_id", "") == before.upload
            assert outcome.facts.get("job_id", "") == before.record.get("job_id", "")

    # -- workers ---------------------------------------------------------------------------

    def begin(self, image_id: str, upload_id: str, number: int) -> None:
        """An attempt of an upload's job takes the lease."""
        job_id = next(job for upload, job in self.views[image_id].jobs if upload == upload_id)
        lease, token = JOBS.lease(job_id), f"token-{next(self.numbers)}"
        self.client.hset(lease, mapping={"attempt": str(number), "token": token})
        self.client.expire(lease, 600)
        held = ProcessingAttempt(image_id, upload_id, Fence(lease, number, token))
        self.attempts[image_id].append(held)

    def expected(self, held: ProcessingAttempt) -> ImageAnswer:
        """The expected answer to an attempt."""
        before = self.views[held.image_id]
        if not before.record:
            return MISSING
        if before.upload != held.upload_id:
            return LOST
        if before.ended:
            return ALREADY
        if held.fence is not None:
            current = self.client.hget(held.fence.lease_key, "token")
            if current != held.fence.token.encode():
                return LOST
        return OK if before.state == "processing" else LOST

    def advance(self) -> None:
        if known := self.attempts[self.image()]:
            held = self.newest(known)
            expected = self.expected(held)
            call = self.store.advance(held, self.rng.choice(STAGES))
            outcome = self.act(held.image_id, call)
            assert outcome.answer in ((OK, ALREADY) if expected is OK else (expected,))
            last = known[-1]
            if self.chance(0.3) and last.fence is not None:  # its lease expired
                self.begin(last.image_id, last.upload_id, last.fence.attempt + 1)

    def end(self) -> None:
        known = self.attempts[self.image()]
        if not known:
            return
        held, how = self.newest(known, 0.7), self.rng.choice(("succeed", "fail", "repair"))
        if how == "repair" or self.chance(0.1):
            held = held._replace(fence=None)
        image_id, upload_id, content = held.image_id, held.upload_id, str(self.rng.random())
        before, expected = self.views[image_id], self.expected(held)
        if how == "repair":
            call = self.store.repair(image_id, upload_id, result_fields(image_id, content))
        elif how == "succeed":
            call = self.store.succeed(held, processed(image_id, content))
        else:
            code = self.rng.choice(list(ErrorCode))
            call = self.store.fail(held, ProcessingFailure(code, content))
        outcome = self.act(image_id, call)
        assert outcome.answer is expected
        after = self.views[image_id]
        fresh = after.entries.keys() - before.entries.keys()
        assert len(fresh) == (1 if expected is OK else 0)
        if expected is OK:
            assert (image_id, upload_id) not in self.published
            self.published.add((image_id, upload_id))
            assert outcome.facts["outcome"] == after.entries[fresh.pop()]
        elif expected is ALREADY:
            assert outcome.facts["outcome"] == after.entries[after.record["result_entry_id"]]

    # -- others ----------------------------------------------------------------------------

    def add_third_party_entry(self) -> None:
        """Add an entry of a third-party pipeline, not read yet."""
        image_id = self.image()
        if self.chance(0.25):
            self.client.xadd(KEYS.results, failure_fields(image_id))
        elif self.chance(0.33):
            self.client.xadd(KEYS.results, result_fields(image_id, str(self.rng.randrange(3))))
        self.notice(image_id, self.read(image_id))

    def persist(self) -> None:
        """One consumer reads, and another persists any entry, in any order, any number of times."""
        image_id = self.image()
        self.client.xreadgroup(GROUP, "api-1", {KEYS.results: ">"})
        before = self.views[image_id]
        if not before.entries:
            return
        entry_id = self.rng.choice([*before.entries])
        fields = before.entries[entry_id]
        outcome = self.act(image_id, self.store.persist(entry_id, fields, GROUP))
        after = self.views[image_id]
        assert after.entries == before.entries
        if not before.record:
            assert outcome.answer is MISSING
        elif outcome.answer is OK:
            assert after.record["result_entry_id"] == entry_id
            assert before.record.get("result_entry_id") != entry_id
            # A reopened image has no result without an upload.
            assert before.guard is not None or before.ended or image_id not in self.past
        else:
            assert outcome.answer is ALREADY
            same = fields.get("sha256", "") == before.record.get("sha256")
            earlier = before.ended and place_of(entry_id) <= place_of(
                before.record["result_entry_id"]
            )
            idle = "results_after" in before.record and not before.ended and not before.guard
            assert same or earlier or idle or entry_id in self.past.get(image_id, ())

    def expire(self) -> None:
        image_id, what = self.image(), self.rng.choice(("deadline", "guard", "status"))
        view = self.views[image_id]
        if what == "deadline" and view.upload and view.state == "queued":
            self.client.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
        elif what == "guard" and view.guard is not None:
            self.client.delete(KEYS.upload(image_id))
            self.unguarded.add(image_id)
        elif what == "status":
            self.client.delete(KEYS.status(image_id))
        self.views[image_id] = self.read(image_id)
