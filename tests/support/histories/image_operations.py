"""Actions of a random history of images; each is checked by its effect."""

from __future__ import annotations

import itertools
import random
from collections.abc import Coroutine
from typing import Any

import redis

from common import codec
from common.contracts.images import ErrorCode
from common.features.images.scripts import IMAGE_SCRIPT
from common.features.images.store import ImageStore
from common.features.images.types import (
    ImageAnswer,
    ImageOutcome,
    ProcessingAttempt,
    ProcessingFailure,
)
from common.jobs.store import Fence
from tests.support.histories.images import (
    JOBS,
    KEYS,
    View,
    check,
    check_globals,
    goes_forward,
    read_view,
)
from tests.support.histories.machine import History, Script, now
from tests.support.store.images import (
    ADMISSION,
    ALREADY,
    CONFLICT,
    GROUP,
    HOLD_MS,
    LOST,
    MISSING,
    OK,
    STAGES,
    failure_fields,
    new_image,
    processed,
    result_fields,
    uploaded,
)

TENANT = "acme"


def place_of(entry_id: str) -> tuple[int, int]:
    found = codec.parse_stream_id(entry_id)
    assert found is not None
    return found


class ImageOperations(History):
    """A few images, clients, gateways and workers; calls with lost replies are repeated."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.script = Script(client, JOBS, IMAGE_SCRIPT)
        self.store = ImageStore(client, JOBS, self.script)
        self.images: list[str] = []
        self.views: dict[str, View] = {}
        #: All uploads and attempts so far.
        self.uploads: dict[str, list[str]] = {}
        self.attempts: dict[str, list[ProcessingAttempt]] = {}
        #: Images whose guard was removed or expired.
        self.unguarded: set[str] = set()
        #: Entries that existed when an image was reopened: of earlier uploads.
        self.past: dict[str, set[str]] = {}
        #: Entries of Sluice's pipeline by image and upload: one each.
        self.published: set[tuple[str, str]] = set()
        self._numbers = itertools.count(1)
        client.xgroup_create(KEYS.results, GROUP, id="0", mkstream=True)

    def name(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._numbers):012x}"

    # -- actions ---------------------------------------------------------------------------

    def act(
        self, image_id: str, call: Coroutine[Any, Any, ImageOutcome], again: bool
    ) -> ImageOutcome:
        """Run an operation on an image, perhaps twice, and check its effect."""
        before = self.views[image_id]
        outcome = now(call)
        after = read_view(self.client, image_id, TENANT)
        if outcome.answer is not OK:
            assert after.content() == before.content(), outcome
        if again:
            self.script.repeat()
            repeated = read_view(self.client, image_id, TENANT)
            assert repeated.content() == after.content(), outcome
        self.notice(image_id, after)
        return outcome

    def notice(self, image_id: str, after: View) -> None:
        """Check the new state of an image, and remember it."""
        before = self.views.get(image_id, after)
        check(self.client, after, image_id in self.unguarded)
        check_globals(self.client)
        assert goes_forward(before, after)
        counts = after.record.get("result_entry_id", "")
        assert counts not in self.past.get(image_id, ())
        if before.ended and after.ended:
            assert place_of(counts) >= place_of(before.record["result_entry_id"])
        if after.guard is not None:
            self.unguarded.discard(image_id)
        self.views[image_id] = after

    def check_at_the_end(self) -> None:
        """Check that an operation on one image has changed no other."""
        for image_id, view in self.views.items():
            assert read_view(self.client, image_id, TENANT).content() == view.content()

    # -- gateways --------------------------------------------------------------------------

    def create(self) -> str:
        new = new_image(image_id=self.name(), tenant=TENANT)
        assert now(self.store.create(new)).answer is OK
        self.images.append(new.image_id)
        self.uploads[new.image_id], self.attempts[new.image_id] = [], []
        self.notice(new.image_id, read_view(self.client, new.image_id, TENANT))
        return new.image_id

    def claim(self, image_id: str, again: bool) -> None:
        before = self.views[image_id]
        upload_id = f"{next(self._numbers):016x}"
        outcome = self.act(image_id, self.store.claim(image_id, upload_id, HOLD_MS), again)
        stale = before.upload and before.record.get("upload_deadline_ms") == "1"
        free = before.state == "queued" and (before.guard is None or stale)
        expected = (OK if free else CONFLICT) if before.record else MISSING
        assert outcome.answer is expected
        if outcome.answer is OK:
            self.uploads[image_id].append(upload_id)
            assert self.views[image_id].upload == upload_id

    def is_uploading(self, image_id: str, upload_id: str) -> bool:
        before = self.views[image_id]
        return before.state == "queued" and before.upload == upload_id

    def extend_claim(self, image_id: str, upload_id: str, again: bool) -> None:
        counts = self.is_uploading(image_id, upload_id)
        outcome = self.act(image_id, self.store.extend_claim(image_id, upload_id, HOLD_MS), again)
        assert outcome.answer is (OK if counts else LOST)

    def release(self, image_id: str, upload_id: str, again: bool) -> None:
        counts = self.is_uploading(image_id, upload_id)
        before = self.views[image_id]
        free = before.state == "queued" and before.guard is None
        outcome = self.act(image_id, self.store.release(image_id, upload_id), again)
        assert outcome.answer is (OK if counts or free else LOST)

    def submit(self, image_id: str, upload_id: str, full: bool, again: bool) -> None:
        before = self.views[image_id]
        counts = self.is_uploading(image_id, upload_id)
        submitted = before.upload == upload_id and "job_id" in before.record
        admission = ADMISSION._replace(backlog_limit=0) if full else ADMISSION
        wanted = uploaded(image_id, upload_id, job_id=self.name())
        outcome = self.act(image_id, self.store.submit(wanted, admission), again)
        if not before.record:
            assert outcome.answer is MISSING
        elif submitted:
            assert outcome == (OK, {"job_id": before.record["job_id"]})
        elif not counts:
            assert outcome.answer is LOST
        elif full:
            assert outcome.answer is ImageAnswer.FULL
        else:
            assert outcome == (OK, {"job_id": wanted.job_id})
            self.begin(image_id, upload_id, 1)

    def reopen(self, image_id: str, again: bool) -> None:
        before = self.views[image_id]
        outcome = self.act(image_id, self.store.reopen(image_id), again)
        if outcome.answer is OK:
            after = self.views[image_id]
            assert (after.state, after.upload, after.guard) == ("queued", "", None)
            if before.state == "failed":
                self.past[image_id] = set(before.entries)
        else:
            assert outcome.answer is (CONFLICT if before.record else MISSING)
            assert before.state != "failed"

    def delete(self, image_id: str, again: bool) -> None:
        before = self.views[image_id]
        outcome = self.act(image_id, self.store.delete(image_id), again)
        assert outcome.answer is (OK if before.record else MISSING)
        if before.record:
            assert outcome.facts.get("upload_id", "") == before.upload
            assert outcome.facts.get("job_id", "") == before.record.get("job_id", "")

    # -- workers ---------------------------------------------------------------------------

    def begin(self, image_id: str, upload_id: str, number: int) -> None:
        """An attempt of an upload's job takes the lease."""
        job_id = next(job for upload, job in self.jobs(image_id) if upload == upload_id)
        lease, token = JOBS.lease(job_id), f"token-{next(self._numbers)}"
        self.client.hset(lease, mapping={"attempt": str(number), "token": token})
        self.client.expire(lease, 600)
        held = ProcessingAttempt(image_id, upload_id, Fence(lease, number, token))
        self.attempts[image_id].append(held)

    def jobs(self, image_id: str) -> list[tuple[str, str]]:
        return read_view(self.client, image_id, TENANT).jobs

    def take_over(self, held: ProcessingAttempt) -> None:
        """The lease of the worker expired, and another one has the job."""
        assert held.fence is not None
        self.begin(held.image_id, held.upload_id, held.fence.attempt + 1)

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

    def advance(self, held: ProcessingAttempt, place: int, again: bool) -> None:
        expected = self.expected(held)
        outcome = self.act(held.image_id, self.store.advance(held, STAGES[place]), again)
        assert outcome.answer in ((OK, ALREADY) if expected is OK else (expected,))

    def end(self, held: ProcessingAttempt, rng: random.Random, again: bool) -> None:
        expected = self.expected(held)
        image_id, upload_id = held.image_id, held.upload_id
        before = self.views[image_id]
        how = rng.choice(("succeed", "fail", "repair"))
        if how == "repair":
            expected = self.expected(held._replace(fence=None))
            fields = result_fields(image_id, str(rng.random()))
            call = self.store.repair(image_id, upload_id, fields)
        elif how == "succeed":
            call = self.store.succeed(held, processed(image_id, str(rng.random())))
        else:
            call = self.store.fail(
                held, ProcessingFailure(rng.choice(list(ErrorCode)), str(rng.random()))
            )
        outcome = self.act(image_id, call, again)
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

    def add_third_party_entry(self, image_id: str, failed: bool, content: str) -> None:
        """Add an entry of a third-party pipeline, not read yet."""
        fields = failure_fields(image_id) if failed else result_fields(image_id, content)
        self.client.xadd(KEYS.results, fields)
        self.notice(image_id, read_view(self.client, image_id, TENANT))

    def persist(self, image_id: str, entry_id: str, again: bool) -> None:
        """Persist any entry, in any order, any number of times."""
        before = self.views[image_id]
        fields = before.entries[entry_id]
        outcome = self.act(image_id, self.store.persist(entry_id, fields, GROUP), again)
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

    def read_results(self) -> None:
        """Read all results with one consumer."""
        self.client.xreadgroup(GROUP, "api-1", {KEYS.results: ">"})

    def expire(self, image_id: str, what: str) -> None:
        view = self.views[image_id]
        if what == "deadline" and view.upload and view.state == "queued":
            self.client.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
        elif what == "guard" and view.guard is not None:
            self.client.delete(KEYS.upload(image_id))
            self.unguarded.add(image_id)
        elif what == "status":
            self.client.delete(KEYS.status(image_id))
        self.views[image_id] = read_view(self.client, image_id, TENANT)
