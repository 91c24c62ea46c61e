"""Pieces of an answer on their way to events: at once, then a few at a time, never out of order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from common.contracts.models import ModelStep
from common.contracts.queue import Answer
from common.jobs.store import Lease, PendingEvent, WorkerIdentity
from tests.conftest import eventually
from worker.errors import AttemptLost
from worker.execution import context as contexts
from worker.execution.context import EventBuffer, JobContext, Outbox
from worker.features.model import token_events as module
from worker.features.model.token_events import TokenStream, fix_surrogates
from worker.features.model.types import Completion, Usage


class Notebook:
    """A store that writes down what it is given, at once or when it is let."""

    def __init__(self) -> None:
        self.events: list[PendingEvent] = []
        self.open = asyncio.Event()
        self.open.set()
        self.answer = Answer.OK

    async def emit(
        self, lease: Lease, worker: WorkerIdentity, first: int, events: Sequence[PendingEvent]
    ) -> Answer:
        await self.open.wait()
        self.events += events
        return self.answer


class Desk:
    """An attempt, and what its watchers have seen of it."""

    def __init__(self, worker: WorkerIdentity) -> None:
        self.store = Notebook()
        lease = Lease("j", "1-1", 3, "t")
        self.buffer = EventBuffer(lease, Outbox(self.store, worker))  # type: ignore[arg-type]
        self.context = JobContext(lease, "chat", self.buffer)
        self.tokens = TokenStream(self.context, ModelStep.CHAT)

    async def seen(self) -> list[tuple[str, Any]]:
        """Everything emitted so far: type and data."""
        _, unsent = await self.buffer.take_unsent()
        self.store.events += unsent
        events = self.store.events
        assert {event.step for event in events} <= {"worker.chat"}
        return [(event.type, json.loads(event.data)) for event in events]

    async def deltas(self) -> list[str]:
        return [data["delta"] for _, data in await self.seen()]

    @property
    def timers(self) -> list[Any]:
        """Timers of ours that would still go off."""
        scheduled = self.tokens._loop._scheduled  # type: ignore[attr-defined]
        return [each for each in scheduled if not each.cancelled() and "_on_time" in repr(each)]


@pytest.fixture
async def desk(worker: WorkerIdentity) -> Desk:
    return Desk(worker)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time alone sends nothing."""
    monkeypatch.setattr(module, "COALESCE_S", 3600.0)


async def test_the_first_piece_leaves_in_the_same_tick(desk: Desk, never: None) -> None:
    await desk.tokens.text("He")
    assert [event.data for event in desk.buffer._unsent] == [b'{"delta":"He","n":1,"attempt":3}']
    await desk.tokens.text("llo")
    assert await desk.deltas() == ["He"]
    await desk.tokens.flush()
    assert desk.timers == []


async def test_what_follows_waits_for_time(desk: Desk) -> None:
    await desk.tokens.text("a")
    for piece in "bcd":
        await desk.tokens.text(piece)
    assert len(desk.timers) == 1
    await eventually(lambda: not desk.timers)
    assert await desk.seen() == [
        ("message", {"delta": "a", "n": 1, "attempt": 3}),
        ("message", {"delta": "bcd", "n": 2, "attempt": 3}),
    ]


async def test_after_a_pause_a_piece_is_not_held_up(desk: Desk) -> None:
    await desk.tokens.text("a")
    desk.tokens._last_s -= 1  # a second has passed
    await desk.tokens.text("b")
    assert await desk.deltas() == ["a", "b"]
    assert desk.timers == []


async def test_or_for_size(desk: Desk, never: None) -> None:
    await desk.tokens.text("first")
    for _ in range(64):
        await desk.tokens.text("ééééé ")  # eleven bytes
    sent = await desk.deltas()
    assert [len(delta.encode()) for delta in sent[1:]] == [517]
    await desk.tokens.flush()


async def test_or_for_the_end_of_a_sentence(desk: Desk, never: None) -> None:
    for piece in ("It", " rained in the mountains all day", " long", ".", " A. B.", " Then"):
        await desk.tokens.text(piece)
    assert await desk.deltas() == ["It", " rained in the mountains all day long."]
    await desk.tokens.flush()


async def test_all_of_it_is_sent_and_counted_in_order(desk: Desk) -> None:
    said = [f"word{number} " for number in range(500)]
    async with desk.tokens as tokens:
        for number, word in enumerate(said):
            await tokens.text(word)
            if number % 50 == 0:
                await asyncio.sleep(0.005)
    seen = await desk.seen()
    assert "".join(data["delta"] for _, data in seen) == "".join(said)
    assert [data["n"] for _, data in seen] == list(range(1, len(seen) + 1))
    assert len(seen) < 100
    assert desk.timers == []


async def test_thoughts_and_answer_keep_their_order(desk: Desk, never: None) -> None:
    async with desk.tokens as tokens:
        await tokens.reasoning("hm")
        await tokens.reasoning("m")
        await tokens.text("Yes")
        await tokens.text(".")
        await tokens.reasoning(" or no")
        await tokens.text(" No")
    assert [(type, data["delta"], data["n"]) for type, data in await desk.seen()] == [
        ("reasoning", "hm", 1),
        ("reasoning", "m", 2),
        ("message", "Yes", 1),
        ("message", ".", 2),
        ("reasoning", " or no", 3),
        ("message", " No", 3),
    ]


async def test_progress_is_told_now_and_then(desk: Desk) -> None:
    for done in range(1001):
        await desk.tokens.progress(done, 1000)
    seen = await desk.seen()
    assert seen[0] == ("progress", {"done": 0, "total": 1000, "attempt": 3})
    assert seen[-1] == ("progress", {"done": 1000, "total": 1000, "attempt": 3})
    assert len(seen) < 20


async def test_a_later_round_says_so_and_begins_at_once(desk: Desk, never: None) -> None:
    await desk.tokens.text("one")
    await desk.tokens.text(" two")
    await desk.tokens.next_round()
    await desk.tokens.text("three")
    assert [data for _, data in await desk.seen()] == [
        {"delta": "one", "n": 1, "attempt": 3},
        {"delta": " two", "n": 2, "attempt": 3},
        {"delta": "three", "n": 3, "attempt": 3, "round": 2},
    ]


async def test_usage_comes_last(desk: Desk, never: None) -> None:
    await desk.tokens.text("a")
    await desk.tokens.text("b")
    await desk.tokens.usage(Completion("ab", "stop", "m1", Usage(10, 2, 4), "", (), 12, 34, 5.5))
    [_, _, (type, data)] = await desk.seen()
    assert (type, data) == (
        "usage",
        {
            "prompt_tokens": 10,
            "completion_tokens": 2,
            "total_tokens": 12,
            "cached_tokens": 4,
            "first_token_ms": 12,
            "tokens_per_s": 5.5,
            "model": "m1",
            "ms": 34,
            "attempt": 3,
        },
    )


# -- characters -----------------------------------------------------------------------------------


async def test_halves_of_a_character_are_joined(desk: Desk, never: None) -> None:
    async with desk.tokens as tokens:
        for piece in ("so \ud83d", "\ude00", "\ud83d", " \ude00 ", "\ud83d"):
            await tokens.text(piece)
    joined = "".join(await desk.deltas())
    assert joined == "so 😀� � �"
    assert joined == fix_surrogates("so \ud83d\ude00\ud83d \ude00 \ud83d")


def test_what_json_can_hold_stays_as_it_is() -> None:
    text = "e\u0301 \u0000 \u2028 👩‍👩‍👧 مرحبا"
    assert fix_surrogates(text) is text


async def test_a_huge_piece_makes_many_small_events(desk: Desk) -> None:
    huge = "\x00e\u0301👩\u200d👧" * 20_000
    async with desk.tokens as tokens:
        await tokens.text(huge)
    pieces = await desk.deltas()
    assert "".join(pieces) == huge
    assert max(len(json.dumps(piece)) for piece in pieces) < contexts.MAX_EVENT_BYTES / 4
    assert not [piece for piece in pieces if piece[0] in "\u0301\u200d"]
    assert len(pieces) < 100


async def test_marks_without_end_are_cut_nevertheless(desk: Desk) -> None:
    async with desk.tokens as tokens:
        await tokens.text("\u0301" * 50_000)
    assert "".join(await desk.deltas()) == "\u0301" * 50_000


# -- trouble --------------------------------------------------------------------------------------


async def test_the_model_waits_while_redis_lags(desk: Desk, monkeypatch: Any) -> None:
    monkeypatch.setattr(contexts, "MAX_UNSENT_EVENTS", 4)
    desk.store.open.clear()
    said: list[int] = []

    async def talk() -> None:
        async with desk.tokens as tokens:
            for number in range(20):
                await tokens.text(f"{number:04} " + "x" * 600)
                said.append(number)

    talking = asyncio.create_task(talk())
    await eventually(lambda: len(said) == 4)
    await asyncio.sleep(0.1)  # longer than a timer takes
    assert said == [0, 1, 2, 3]
    desk.store.open.set()
    await asyncio.wait_for(talking, 5)
    assert [int(delta[:4]) for delta in await desk.deltas()] == list(range(20))
    assert desk.timers == []


async def test_a_timer_waits_too_and_tries_again(desk: Desk, monkeypatch: Any) -> None:
    monkeypatch.setattr(contexts, "MAX_UNSENT_EVENTS", 1)
    desk.store.open.clear()
    await desk.tokens.text("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await desk.context.emit("noise")  # fills the room
    await desk.tokens.text("b")
    await asyncio.sleep(0.1)
    assert len(desk.timers) == 1
    desk.store.open.set()
    await eventually(lambda: len(desk.store.events) == 3)
    assert [json.loads(event.data).get("delta") for event in desk.store.events] == ["a", None, "b"]
    assert desk.timers == []


async def test_a_lost_attempt_is_told_to_whoever_writes_next(desk: Desk) -> None:
    await desk.tokens.text("a")
    await desk.tokens.text("b")
    desk.buffer.lost = True
    await eventually(lambda: not desk.timers)
    with pytest.raises(AttemptLost):
        await desk.tokens.text("c" * 600)
    assert desk.timers == []


async def test_an_error_leaves_no_timer_and_loses_no_word(desk: Desk) -> None:
    async def fail() -> None:
        async with desk.tokens as tokens:
            await tokens.text("a")
            await tokens.text("b\ud83d")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert "".join(await desk.deltas()) == "ab�"
    assert desk.timers == []


async def test_nothing_is_said_where_nothing_was_said(desk: Desk) -> None:
    async with desk.tokens as tokens:
        await tokens.text("")
        await tokens.reasoning("")
    assert await desk.seen() == []
