"""Random histories over the image scripts: the invariants hold for any order of events.

Clients create, delete and reopen images. Gateways claim, hold, release and submit uploads, also
superseded ones. Workers advance and end attempts, also superseded ones. A third-party pipeline
writes results, and consumers read them in any order, late and twice. Guards, statuses and deadlines
expire, replies are lost and calls repeated. After every action the whole image is read and checked:
it is never done without a result entry, an upload has one job and one end, guard and record agree,
progress never decreases, and everything expires.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar, TypeVar

import pytest

from tests.support.histories.image_operations import ImageOperations
from tests.support.histories.machine import blocking_client, search, search_is_slow, walk, walks
from tests.support.servers import FAKE, REAL, RealServer

UPLOADING = ("hold", "release", "submit", "submit", "submit", "full")
_T = TypeVar("_T")


def newest(known: list[_T], rng: random.Random, share: float = 0.8) -> _T:
    """Preferably the newest rather than an old one, which may be superseded."""
    return known[-1] if rng.random() < share else rng.choice(known)


def again(rng: random.Random) -> bool:
    """Whether the reply is lost."""
    return rng.random() < 0.3


class ImageHistory(ImageOperations):
    """Operations that advance an image are chosen more often than those that end it."""

    operations: ClassVar[dict[str, int]] = {
        "a_client_creates": 2,
        "a_gateway_claims": 3,
        "a_gateway_uploads": 4,
        "a_worker_works": 4,
        "a_worker_ends": 2,
        "a_client_reopens": 3,
        "a_client_deletes": 1,
        "a_consumer_reads": 2,
        "a_third_party_writes": 1,
        "time_passes": 2,
    }

    def start(self, rng: random.Random) -> None:
        self.claim(self.create(), False)

    def image(self, rng: random.Random) -> str:
        """Preferably one that exists."""
        there = [image_id for image_id in self.images if self.views[image_id].record]
        return rng.choice(self.images if rng.random() < 0.125 or not there else there)

    def a_client_creates(self, rng: random.Random) -> None:
        if sum(bool(view.record) for view in self.views.values()) < 3:
            self.create()

    def a_gateway_claims(self, rng: random.Random) -> None:
        self.claim(self.image(rng), again(rng))

    def a_gateway_uploads(self, rng: random.Random) -> None:
        image_id, what, repeated = self.image(rng), rng.choice(UPLOADING), again(rng)
        if not self.uploads[image_id]:
            return
        upload_id = newest(self.uploads[image_id], rng)
        if what == "hold":
            self.extend_claim(image_id, upload_id, repeated)
        elif what == "release":
            self.release(image_id, upload_id, repeated)
        else:
            self.submit(image_id, upload_id, what == "full", repeated)

    def a_worker_works(self, rng: random.Random) -> None:
        known = self.attempts[self.image(rng)]
        if known:
            self.advance(newest(known, rng), rng.randrange(5), again(rng))
            if rng.random() < 0.3:
                self.take_over(known[-1])

    def a_worker_ends(self, rng: random.Random) -> None:
        known = self.attempts[self.image(rng)]
        if known:
            held = newest(known, rng, 0.7)
            self.end(held._replace(fence=None) if rng.random() < 0.1 else held, rng, again(rng))

    def a_client_reopens(self, rng: random.Random) -> None:
        self.reopen(self.image(rng), again(rng))

    def a_client_deletes(self, rng: random.Random) -> None:
        if rng.random() < 0.2:
            self.delete(self.image(rng), again(rng))

    def a_consumer_reads(self, rng: random.Random) -> None:
        image_id = self.image(rng)
        self.read_results()
        if self.views[image_id].entries:
            self.persist(image_id, rng.choice([*self.views[image_id].entries]), again(rng))

    def a_third_party_writes(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            failed, content = rng.random() < 0.5, str(rng.randrange(3))
            self.add_third_party_entry(self.image(rng), failed, content)

    def time_passes(self, rng: random.Random) -> None:
        self.expire(self.image(rng), rng.choice(("deadline", "guard", "status")))


@walks(seeds=10, fast=4, on_fakeredis=4)
def test_invariants_hold_on_a_long_walk(
    name: str, seed: int, real_server: Callable[[str], RealServer]
) -> None:
    """fakeredis takes thirty times as long for the same script."""
    history = ImageHistory(blocking_client(name, real_server))
    walk(history, seed, steps=40 if name == FAKE else 300)


@search_is_slow
@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(
    name: str, real_server: Callable[[str], RealServer]
) -> None:
    client, operations = real_server(name).client, ImageHistory.operations
    search(lambda: ImageHistory(client), operations, max_examples=40, stateful_step_count=40)
