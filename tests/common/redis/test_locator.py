"""Which servers are queried for the location, in which order, and how answers are used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import exceptions

from sluice.common.redis import failover, locator
from sluice.common.redis import locator as module
from sluice.common.redis.addresses import Node, keyslot, parse_address, url_for_tag
from sluice.common.redis.failover import watch_master
from sluice.common.redis.locator import (
    LocatorQuery,
    ServerLocator,
    locate,
    locate_sync,
    survey_cluster,
)
from tests.support.waiting import eventually

SENTINEL = parse_address("redis+sentinel://a:1,b:2,c:3/mymaster")
CLUSTER = parse_address("redis+cluster://a:1,b:2")
A, B, C = SENTINEL.seeds
MASTER = [b"m", b"6379"]
DOWN = exceptions.ConnectionError("refused")


def owned(*ranges: tuple[int, int, bytes, int]) -> list[Any]:
    """A reply to CLUSTER SLOTS, without replicas."""
    return [[first, last, [host, port, b"id"]] for first, last, host, port in ranges]


def ask(known: ServerLocator, answers: dict[str, Any]) -> list[str]:
    """Play the servers; returns the queried ones in order."""
    asked: list[str] = []
    questions = known.queries()
    try:
        question = next(questions)
        while True:
            server = question.url.removeprefix("redis://").partition("/")[0]
            asked.append(server)
            answer = answers.get(server, DOWN)
            if isinstance(answer, Exception):
                question = questions.throw(answer)
            else:
                question = questions.send(answer)
    except StopIteration:
        return asked


def test_sentinels_are_queried_in_turn_until_one_answers() -> None:
    known = ServerLocator(SENTINEL)
    assert ask(known, {"b:2": None, "c:3": MASTER}) == ["a:1", "b:2", "c:3"]
    assert known.cached_owner(0) == Node("m", 6379)
    assert ask(known, {"c:3": MASTER}) == ["c:3"]  # the one that answered is queried first


def test_a_source_of_a_wrong_answer_is_queried_last() -> None:
    known = ServerLocator(SENTINEL)
    ask(known, {"a:1": MASTER})
    known.invalidate(Node("somebody", 1))
    assert known.cached_owner(0) == Node("m", 6379)
    known.invalidate(Node("m", 6379))
    assert known.cached_owner(0) is None
    assert ask(known, {"a:1": MASTER, "b:2": [b"n", b"1"]}) == ["b:2"]
    assert known.cached_owner(0) == Node("n", 1)


def test_a_cached_answer_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ServerLocator(SENTINEL)
    monkeypatch.setattr(module, "CACHE_TTL_S", 0.0)
    ask(known, {"a:1": MASTER})
    assert known.cached_owner(0) is None
    assert known.require_owner(0) == Node("m", 6379)


def test_the_error_has_the_reasons_but_no_passwords() -> None:
    known = ServerLocator(
        parse_address("redis+sentinel://u:hunter2@a:1,b:2/x?sentinel_password=hunter3")
    )
    with pytest.raises(exceptions.ConnectionError, match="refused") as caught:
        ask(known, {"a:1": None})
    assert "hunter" not in str(caught.value)
    assert not isinstance(caught.value, exceptions.AuthenticationError)


def test_a_password_wrong_everywhere_is_an_authentication_error() -> None:
    known = ServerLocator(CLUSTER)
    wrong = exceptions.AuthenticationError("WRONGPASS")
    with pytest.raises(exceptions.AuthenticationError):
        ask(known, {"a:1": wrong, "b:2": wrong})
    with pytest.raises(exceptions.ConnectionError) as caught:
        ask(known, {"a:1": wrong})
    assert not isinstance(caught.value, exceptions.AuthenticationError)


def test_a_cluster_reports_the_owner_of_each_slot() -> None:
    known = ServerLocator(CLUSTER)
    slots = owned((0, 99, b"x", 1), (100, 16_383, b"y", 2))
    ask(known, {"a:1": slots})
    assert (known.cached_owner(99), known.cached_owner(100)) == (Node("x", 1), Node("y", 2))
    assert known.owners() == ((Node("x", 1), Node("y", 2)), 0)
    # A slot may have no owner.
    known = ServerLocator(CLUSTER)
    ask(known, {"a:1": owned((0, 99, b"x", 1))})
    assert known.owners() == ((Node("x", 1),), 16_284)
    with pytest.raises(exceptions.ConnectionError, match="slot 100"):
        known.require_owner(100)


def test_other_nodes_are_queried_after_the_seeds_or_when_moved() -> None:
    known = ServerLocator(CLUSTER)
    slots = [[0, 16_383, [b"x", 1, b"id"], [b"replica", 2, b"id"]]]
    ask(known, {"a:1": slots})
    known.invalidate(Node("x", 1))
    assert ask(known, {"replica:2": slots})[-1] == "replica:2"
    # The target of a MOVED error is queried first.
    known = ServerLocator(CLUSTER)
    ask(known, {"a:1": owned((0, 16_383, b"x", 1))})
    known.invalidate(Node("x", 1), Node("new", 9))
    assert ask(known, {"new:9": owned((0, 16_383, b"new", 9))}) == ["new:9"]


def test_a_node_without_slots_or_name_is_skipped() -> None:
    known = ServerLocator(CLUSTER)
    nameless = owned((0, 9, b"?", 1), (10, 16_383, b"", 7))
    assert ask(known, {"a:1": [], "b:2": nameless}) == ["a:1", "b:2"]
    assert known.cached_owner(10) == Node("b", 7)  # the queried node itself
    assert known.cached_owner(9) is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All servers report the same Cluster, slowly enough for concurrent lookups."""
    questions: list[str] = []
    slots = owned((0, 16_383, b"x", 1))

    async def put(question: LocatorQuery) -> Any:
        questions.append(question.url)
        await asyncio.sleep(0)
        return slots

    def put_sync(question: LocatorQuery) -> Any:
        questions.append(question.url)
        return slots

    monkeypatch.setattr(module, "_send_query", put)
    monkeypatch.setattr(module, "_send_query_sync", put_sync)
    module.locator_for.cache_clear()
    yield questions
    module.locator_for.cache_clear()


async def test_concurrent_connections_share_one_lookup(asked: list[str]) -> None:
    url = "redis+cluster://a:1,b:2"
    addresses = [parse_address(url_for_tag(url, f"{{{number}}}")) for number in range(20)]
    found = await asyncio.gather(*(locate(address) for address in addresses))
    assert set(found) == {Node("x", 1)}
    assert asked == ["redis://a:1/0"]
    assert locate_sync(addresses[0]) == Node("x", 1)
    assert len(asked) == 1
    assert survey_cluster(addresses[0]) == ((Node("x", 1),), 0)
    assert len(asked) == 2


async def test_a_canceled_lookup_does_not_cancel_others(asked: list[str]) -> None:
    address = parse_address("redis+cluster://a:1")
    assert address.slot == keyslot("0")
    first = asyncio.create_task(locate(address))
    second = asyncio.create_task(locate(address))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == Node("x", 1)
    assert len(asked) == 1


# -- The watch: connections to a replaced master are closed, although it still answers ------------


ADDRESS = parse_address("redis+sentinel://a:1/mymaster")
OLD, NEW = Node("old", 1), Node("new", 2)


@dataclass(eq=False)
class Connection:
    """An open connection to a server."""

    node: Node | None = OLD
    is_connected: bool = True

    def hang_up(self) -> None:
        self.is_connected = False


class Sentinel:
    """Reports a master, or none."""

    master: Node | None = OLD
    asked = 0

    async def put(self, question: LocatorQuery) -> Any:
        self.asked += 1
        if self.master is None:
            raise OSError("nobody is there")
        return [self.master.host.encode(), str(self.master.port).encode()]


@pytest.fixture
def sentinel(monkeypatch: pytest.MonkeyPatch) -> Sentinel:
    sentinel = Sentinel()
    monkeypatch.setattr(locator, "_send_query", sentinel.put)
    monkeypatch.setattr(failover, "WATCH_INTERVAL_S", 0.001)
    locator.locator_for.cache_clear()
    return sentinel


async def test_only_connections_to_the_old_master_are_closed(sentinel: Sentinel) -> None:
    old, late, new = Connection(), Connection(), Connection(NEW)
    watch_master(ADDRESS, old)
    await eventually(lambda: sentinel.asked > 2)
    assert old.is_connected
    sentinel.master = NEW
    await eventually(lambda: not old.is_connected)  # from now on every reply names the new master
    watch_master(ADDRESS, new)
    watch_master(ADDRESS, late)
    await eventually(lambda: not late.is_connected)
    assert new.is_connected
    new.is_connected = False


async def test_without_a_sentinel_no_connection_is_closed(sentinel: Sentinel) -> None:
    connection = Connection()
    sentinel.master = None
    watch_master(ADDRESS, connection)
    await eventually(lambda: sentinel.asked > 2)
    assert connection.is_connected
    connection.is_connected = False


async def test_the_watch_ends_with_the_last_connection(sentinel: Sentinel) -> None:
    before = asyncio.all_tasks()
    connection = Connection()
    watch_master(ADDRESS, connection)
    assert asyncio.all_tasks() != before
    connection.is_connected = False
    await eventually(lambda: asyncio.all_tasks() == before)
    again = Connection()
    watch_master(ADDRESS, again)
    sentinel.master = NEW
    await eventually(lambda: not again.is_connected)
    await eventually(lambda: asyncio.all_tasks() == before)
