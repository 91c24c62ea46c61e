"""Random histories: operations change Redis and a model of it, and invariants hold after each.

One machine runs the histories of jobs, images and workflows. A long walk covers much in a short
time; Hypothesis tries fewer operations, but shortens a history that fails.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic, Protocol, TypeVar

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

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.scripts import JobScript
from sluice.common.redis.scripts import Record, Reply, unpack

JOBS = JobKeys()
_T = TypeVar("_T")
_SEED = st.integers(0, 2**32 - 1)


class History:
    """The state of one history; subclasses define the operations, the model and the invariants."""

    #: Methods that perform an operation with random choices, and how often each is chosen.
    operations: ClassVar[dict[str, int]]
    lua: ClassVar[JobScript]

    def __init__(self, client: redis.Redis) -> None:
        client.flushall()
        self.client = client
        self.script = Script(client, self.lua)
        self.rng = random.Random()
        self.numbers = itertools.count(1)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def start(self) -> None:
        """Begin with some state: an empty history takes long to become interesting."""

    def step(self) -> None:
        [name] = self.rng.choices([*self.operations], [*self.operations.values()])
        getattr(self, name)()

    def check(self) -> None:
        """Check the invariants after a step, unless the operations do."""

    def check_at_the_end(self) -> None:
        """Check what would take too long after each step."""


class View(Protocol):
    """Everything that is stored about one object."""

    def content(self) -> Any:
        """What an operation without effect leaves unchanged."""


_View = TypeVar("_View", bound=View)


class ObservedHistory(History, Generic[_View]):
    """A few objects; each is read and checked completely after every operation on it."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: The last state of each object.
        self.views: dict[str, _View] = {}

    def read(self, name: str) -> _View:
        raise NotImplementedError

    def has_no_effect(self, outcome: Any) -> bool:
        raise NotImplementedError

    def notice(self, name: str, after: _View) -> None:
        """Check the new state of an object, and remember it."""
        self.views[name] = after

    def one_of(self, preferred: list[str]) -> str:
        """Preferably one of these, otherwise any object."""
        return self.rng.choice([*self.views] if self.chance(0.125) or not preferred else preferred)

    def act(self, name: str, call: Coroutine[Any, Any, _T]) -> _T:
        """Run an operation, repeat it if its reply is lost, and check its effect."""
        before, outcome, after = self.views[name], now(call), self.read(name)
        if self.has_no_effect(outcome):
            assert after.content() == before.content(), outcome
        if self.chance(0.3):
            self.script.repeat()
            assert self.read(name).content() == after.content(), outcome
        self.notice(name, after)
        return outcome

    def check_at_the_end(self) -> None:
        """Check that an operation on one object has changed no other."""
        for name, view in self.views.items():
            assert self.read(name).content() == view.content()


def walk(history: History, seed: int, steps: int) -> None:
    """Run a long history."""
    history.rng = random.Random(seed)
    history.start()
    for _ in range(steps):
        history.step()
        history.check()
    history.check_at_the_end()


def search(make: Callable[[], History], **sizes: int) -> None:
    """Let Hypothesis search for a history that violates an invariant, and shorten it."""
    operations = make().operations
    names = [name for name, weight in operations.items() for _ in range(weight)]

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.history = make()

        @initialize(seed=_SEED)
        def start(self, seed: int) -> None:
            self.history.rng = random.Random(seed)
            self.history.start()

        @rule(name=st.sampled_from(names), seed=_SEED)
        def step(self, name: str, seed: int) -> None:
            self.history.rng = random.Random(seed)
            getattr(self.history, name)()

        @invariant()
        def holds(self) -> None:
            self.history.check()

        def teardown(self) -> None:
            self.history.check_at_the_end()

    options = {"deadline": None, "database": None, "derandomize": True, **sizes}
    checks = list(HealthCheck)
    run_state_machine_as_test(Machine, settings=settings(suppress_health_check=checks, **options))


def now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class Script:
    """Replaces a batcher: runs each record at once, over a blocking client."""

    def __init__(self, client: redis.Redis, script: JobScript) -> None:
        self._client = client
        self._script = script
        #: The last call, for a repetition after a lost reply.
        self.last: Record | None = None

    async def call(self, record: Record) -> Reply:
        self.last = record
        return self.one(record)

    def send(self, *records: Record) -> list[Any]:
        args = self._script.pack(JOBS, records)
        try:
            raw: Any = self._client.evalsha(self._script.sha, *args)
        except redis.exceptions.NoScriptError:
            raw = self._client.eval(self._script.source, *args)
        return [unpack(each) for each in raw]

    def one(self, record: Record) -> Reply:
        [reply] = self.send(record)
        assert isinstance(reply, Reply), reply
        return reply

    def repeat(self) -> None:
        """Send the last call again, as after a lost reply."""
        assert self.last is not None
        self.one(self.last)
