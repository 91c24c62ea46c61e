"""Random histories: operations change Redis and a model of it, and invariants hold after each.

One machine runs the histories of jobs, images and workflows. A long walk covers much in a short
time; Hypothesis tries fewer operations, but shortens a history that fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from common.contracts.jobs import JobKeys
from common.jobs.scripts import JobScript
from common.redis.scripts import Record, Reply, unpack
from tests.support.servers import BUNDLED, FAKE, REAL, RealServer

_T = TypeVar("_T")
_SEED = st.integers(0, 2**32 - 1)


class History:
    """The state of one history; subclasses define the operations, the model and the invariants."""

    #: Methods that perform an operation with random choices, and how often each is chosen. An
    #: operation returns False if there is nothing that it could act on; the first always acts.
    operations: ClassVar[dict[str, int]]

    def __init__(self, client: redis.Redis) -> None:
        client.flushall()
        self.client = client

    def start(self, rng: random.Random) -> None:
        """Begin with some state: an empty history takes long to become interesting."""

    def step(self, rng: random.Random) -> None:
        names, weights = zip(*self.operations.items())
        for name in (*rng.choices(names, weights, k=20), names[0]):
            if getattr(self, name)(rng) is not False:
                return

    def check(self) -> None:
        """Check the invariants after a step, unless the operations do."""

    def check_at_the_end(self) -> None:
        """Check what would take too long after each step."""


def walk(history: History, seed: int, steps: int) -> None:
    """Run a long history."""
    rng = random.Random(seed)
    history.start(rng)
    for _ in range(steps):
        history.step(rng)
        history.check()
    history.check_at_the_end()


def search(make: Callable[[], History], operations: dict[str, int], **sizes: int) -> None:
    """Let Hypothesis search for a history that violates an invariant, and shorten it."""
    names = [name for name, weight in operations.items() for _ in range(weight)]

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.history = make()

        @initialize(seed=_SEED)
        def start(self, seed: int) -> None:
            self.history.start(random.Random(seed))

        @rule(name=st.sampled_from(names), seed=_SEED)
        def step(self, name: str, seed: int) -> None:
            getattr(self.history, name)(random.Random(seed))

        @invariant()
        def holds(self) -> None:
            self.history.check()

        def teardown(self) -> None:
            self.history.check_at_the_end()

    options = {"deadline": None, "database": None, "derandomize": True, **sizes}
    checks = list(HealthCheck)
    run_state_machine_as_test(Machine, settings=settings(suppress_health_check=checks, **options))


def walks(seeds: int, fast: int, on_fakeredis: int = 0) -> Any:
    """Parametrises a test with a server and a seed: all seeds on the embedded Redis, of which so
    many in the fast tier, and a quarter of them on each other server, since the scripts are the
    same there. fakeredis, which is slow, runs one in the fast tier."""
    sizes = {FAKE: on_fakeredis, **dict.fromkeys(REAL, seeds // 4), BUNDLED: seeds}
    slow = pytest.mark.slow("more random histories; the first ones are in the fast tier")
    pairs = [
        pytest.param(name, seed, marks=slow if seed >= (1 if name == FAKE else fast) else ())
        for name, count in sizes.items()
        for seed in range(count)
    ]
    return pytest.mark.parametrize(("name", "seed"), pairs)


#: Marks a search for a history by Hypothesis.
search_is_slow = pytest.mark.slow("Hypothesis; long walks with the same operations are fast")


def blocking_client(name: str, real_server: Callable[[str], RealServer]) -> redis.Redis:
    if name == FAKE:
        return fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(7, 2)))
    return real_server(name).client


def now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class Script:
    """Replaces a batcher: runs each record at once, over a blocking client."""

    def __init__(self, client: redis.Redis, keys: JobKeys, script: JobScript) -> None:
        self._client = client
        self._keys = keys
        self._script = script
        #: The last call, for a repetition after a lost reply.
        self.last: Record | None = None

    async def call(self, record: Record) -> Reply:
        self.last = record
        [reply] = self.send(record)
        assert isinstance(reply, Reply), reply
        return reply

    def send(self, *records: Record) -> list[Any]:
        args = self._script.pack(self._keys, records)
        try:
            raw: Any = self._client.evalsha(self._script.sha, *args)
        except redis.exceptions.NoScriptError:
            raw = self._client.eval(self._script.source, *args)
        return [unpack(each) for each in raw]

    def repeat(self) -> None:
        """Send the last call again, as after a lost reply."""
        assert self.last is not None
        [reply] = self.send(self.last)
        assert isinstance(reply, Reply), reply
