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

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.common.features.images.walking import Walk
from tests.support.backends import ALL, FAKE, REAL, RealServer

PICK = st.integers(0, 99)
SEED = st.integers(0, 2**32 - 1)
UPLOADING = ("hold", "release", "submit", "submit", "submit", "full")
RUN_OUT = ("deadline", "guard", "status")


class ImageHistory(RuleBasedStateMachine):
    """A few rules with choices are drawn more evenly than many; details come from a seed."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.walk = Walk(client)

    def image(self, pick: int) -> str:
        """Preferably one that exists."""
        walk = self.walk
        there = [image_id for image_id in walk.images if walk.sights[image_id].record]
        some = walk.images if pick % 8 == 0 or not there else there
        return some[pick // 8 % len(some)]

    @initialize()
    def a_first_image(self) -> None:
        image_id = self.walk.create()
        self.walk.claim(image_id, False)

    @rule()
    def a_client_creates(self) -> None:
        if sum(bool(sight.record) for sight in self.walk.sights.values()) < 3:
            self.walk.create()

    @rule(pick=PICK, again=st.booleans())
    def a_gateway_claims(self, pick: int, again: bool) -> None:
        self.walk.claim(self.image(pick), again)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_gateway_uploads(self, pick: int, seed: int, again: bool) -> None:
        """Preferably the newest upload rather than an old one, which may be superseded."""
        rng = random.Random(seed)
        image_id = self.image(pick)
        known = self.walk.uploads[image_id]
        if not known:
            return
        upload_id = known[-1] if rng.random() < 0.8 else rng.choice(known)
        what = rng.choice(UPLOADING)
        if what == "hold":
            self.walk.extend_claim(image_id, upload_id, again)
        elif what == "release":
            self.walk.release(image_id, upload_id, again)
        else:
            self.walk.submit(image_id, upload_id, what == "full", again)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_worker_works(self, pick: int, seed: int, again: bool) -> None:
        rng = random.Random(seed)
        known = self.walk.attempts[self.image(pick)]
        if not known:
            return
        held = known[-1] if rng.random() < 0.8 else rng.choice(known)
        self.walk.advance(held, rng.randrange(5), again)
        if rng.random() < 0.3:
            self.walk.take_over(known[-1])

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_worker_ends(self, pick: int, seed: int, again: bool) -> None:
        rng = random.Random(seed)
        known = self.walk.attempts[self.image(pick)]
        if known:
            held = known[-1] if rng.random() < 0.7 else rng.choice(known)
            self.walk.end(held._replace(fence=None) if rng.random() < 0.1 else held, rng, again)

    @rule(pick=PICK, again=st.booleans())
    def a_client_opens_again(self, pick: int, again: bool) -> None:
        self.walk.reopen(self.image(pick), again)

    @rule(pick=PICK, again=st.booleans())
    def a_client_deletes(self, pick: int, again: bool) -> None:
        if pick % 5 == 0:
            self.walk.delete(self.image(pick), again)

    @rule(pick=PICK, seed=SEED, again=st.booleans())
    def a_consumer_reads(self, pick: int, seed: int, again: bool) -> None:
        rng = random.Random(seed)
        image_id = self.image(pick)
        self.walk.read_results()
        entries = list(self.walk.sights[image_id].entries)
        if entries:
            self.walk.persist(image_id, rng.choice(entries), again)

    @rule(pick=PICK, seed=SEED)
    def somebody_else_tells(self, pick: int, seed: int) -> None:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            self.walk.add_third_party_entry(
                self.image(pick), rng.random() < 0.5, str(rng.randrange(3))
            )

    @rule(pick=PICK, what=st.sampled_from(RUN_OUT))
    def time_passes(self, pick: int, what: str) -> None:
        self.walk.time_passes(self.image(pick), what)

    def teardown(self) -> None:
        self.walk.others_are_as_they_were()


def act(history: ImageHistory, rng: random.Random) -> None:
    """Any rule; those that advance an image more often than those that end it."""
    pick, seed, again = rng.randrange(100), rng.getrandbits(32), rng.random() < 0.3
    acts: list[tuple[int, Callable[[], None]]] = [
        (2, history.a_client_creates),
        (3, lambda: history.a_gateway_claims(pick, again)),
        (4, lambda: history.a_gateway_uploads(pick, seed, again)),
        (4, lambda: history.a_worker_works(pick, seed, again)),
        (2, lambda: history.a_worker_ends(pick, seed, again)),
        (3, lambda: history.a_client_opens_again(pick, again)),
        (1, lambda: history.a_client_deletes(pick, again)),
        (2, lambda: history.a_consumer_reads(pick, seed, again)),
        (1, lambda: history.somebody_else_tells(pick, seed)),
        (2, lambda: history.time_passes(pick, rng.choice(RUN_OUT))),
    ]
    weights, calls = zip(*acts, strict=True)
    rng.choices(calls, weights)[0]()


@pytest.fixture
def client(name: str, real_server: Callable[[str], RealServer]) -> redis.Redis:
    if name == FAKE:
        return fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(7, 2)))
    return real_server(name).client


#: fakeredis takes thirty times as long for the same script.
ACTS = {FAKE: 40}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in ALL for seed in range(4 if name == FAKE else 10)]
)
def test_invariants_hold_on_a_long_walk(name: str, seed: int, client: redis.Redis) -> None:
    """Hypothesis shrinks failures; a long walk covers more in the same time."""
    rng = random.Random(seed)
    history = ImageHistory(client)
    history.a_first_image()
    for _ in range(ACTS.get(name, 300)):
        act(history, rng)
    history.teardown()


@pytest.mark.parametrize("name", REAL)
def test_invariants_hold_in_every_history(client: redis.Redis) -> None:
    run_state_machine_as_test(
        lambda: ImageHistory(client),
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
