"""Token events: the first at once, then in batches, always in order."""

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


class RecordingStore:
    """A store that records events, at once or when released."""

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


class TokenRig:
    """An attempt, and the events that it has emitted."""

    def __init__(self, worker: WorkerIdentity) -> None:
        self.store = RecordingStore()
        lease = Lease("j", "1-1", 3, "t")
        self.buffer = EventBuffer(lease, Outbox(self.store, worker))  # type: ignore[arg-type]
        self.context = JobContext(lease, "chat", self.buffer)
        self.tokens = TokenStream(self.context, ModelStep.CHAT)

    async def seen(self) -> list[tuple[str, Any]]:
        """Type and data of all events so far."""
        _, unsent = await self.buffer.take_unsent()
        self.store.events += unsent
        events = self.store.events
        assert {event.step for event in events} <= {"worker.chat"}
        return [(event.type, json.loads(event.data)) for event in events]

    async def deltas(self) -> list[str]:
        return [data["delta"] for _, data in await self.seen()]

    @property
    def timers(self) -> list[Any]:
        """Pending timers of the token stream."""
        scheduled = self.tokens._loop._scheduled  # type: ignore[attr-defined]
        return [each for each in scheduled if not each.cancelled() and "_on_time" in repr(each)]


@pytest.fixture
async def rig(worker: WorkerIdentity) -> TokenRig:
    return TokenRig(worker)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable sending by time."""
    monkeypatch.setattr(module, "COALESCE_S", 3600.0)


async def test_the_first_piece_leaves_in_the_same_tick(rig: TokenRig, never: None) -> None:
    await rig.tokens.text("He")
    assert [event.data for event in rig.buffer._unsent] == [b'{"delta":"He","n":1,"attempt":3}']
    await rig.tokens.text("llo")
    assert await rig.deltas() == ["He"]
    await rig.tokens.flush()
    assert rig.timers == []


async def test_further_pieces_are_sent_by_time(rig: TokenRig) -> None:
    await rig.tokens.text("a")
    for piece in "bcd":
        await rig.tokens.text(piece)
    assert len(rig.timers) == 1
    await eventually(lambda: not rig.timers)
    assert await rig.seen() == [
        ("message", {"delta": "a", "n": 1, "attempt": 3}),
        ("message", {"delta": "bcd", "n": 2, "attempt": 3}),
    ]


async def test_after_a_pause_a_piece_is_not_held_up(rig: TokenRig) -> None:
    await rig.tokens.text("a")
    rig.tokens._last_s -= 1  # a second has passed
    await rig.tokens.text("b")
    assert await rig.deltas() == ["a", "b"]
    assert rig.timers == []


async def test_further_pieces_are_sent_by_size(rig: TokenRig, never: None) -> None:
    await rig.tokens.text("first")
    for _ in range(64):
        await rig.tokens.text("ééééé ")  # eleven bytes
    sent = await rig.deltas()
    assert [len(delta.encode()) for delta in sent[1:]] == [517]
    await rig.tokens.flush()


async def test_further_pieces_are_sent_at_the_end_of_a_sentence(rig: TokenRig, never: None) -> None:
    for piece in ("It", " rained in the mountains all day", " long", ".", " A. B.", " Then"):
        await rig.tokens.text(piece)
    assert await rig.deltas() == ["It", " rained in the mountains all day long."]
    await rig.tokens.flush()


async def test_all_of_it_is_sent_and_counted_in_order(rig: TokenRig) -> None:
    said = [f"word{number} " for number in range(500)]
    async with rig.tokens as tokens:
        for number, word in enumerate(said):
            await tokens.text(word)
            if number % 50 == 0:
                await asyncio.sleep(0.005)
    seen = await rig.seen()
    assert "".join(data["delta"] for _, data in seen) == "".join(said)
    assert [data["n"] for _, data in seen] == list(range(1, len(seen) + 1))
    assert len(seen) < 100
    assert rig.timers == []


async def test_reasoning_and_answer_keep_their_order(rig: TokenRig, never: None) -> None:
    async with rig.tokens as tokens:
        await tokens.reasoning("hm")
        await tokens.reasoning("m")
        await tokens.text("Yes")
        await tokens.text(".")
        await tokens.reasoning(" or no")
        await tokens.text(" No")
    assert [(type, data["delta"], data["n"]) for type, data in await rig.seen()] == [
        ("reasoning", "hm", 1),
        ("reasoning", "m", 2),
        ("message", "Yes", 1),
        ("message", ".", 2),
        ("reasoning", " or no", 3),
        ("message", " No", 3),
    ]


async def test_progress_is_throttled(rig: TokenRig) -> None:
    for done in range(1001):
        await rig.tokens.progress(done, 1000)
    seen = await rig.seen()
    assert seen[0] == ("progress", {"done": 0, "total": 1000, "attempt": 3})
    assert seen[-1] == ("progress", {"done": 1000, "total": 1000, "attempt": 3})
    assert len(seen) < 20


async def test_a_later_round_has_its_number_and_starts_at_once(rig: TokenRig, never: None) -> None:
    await rig.tokens.text("one")
    await rig.tokens.text(" two")
    await rig.tokens.next_round()
    await rig.tokens.text("three")
    assert [data for _, data in await rig.seen()] == [
        {"delta": "one", "n": 1, "attempt": 3},
        {"delta": " two", "n": 2, "attempt": 3},
        {"delta": "three", "n": 3, "attempt": 3, "round": 2},
    ]


async def test_usage_comes_last(rig: TokenRig, never: None) -> None:
    await rig.tokens.text("a")
    await rig.tokens.text("b")
    await rig.tokens.usage(Completion("ab", "stop", "m1", Usage(10, 2, 4), "", (), 12, 34, 5.5))
    [_, _, (type, data)] = await rig.seen()
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


async def test_surrogate_pairs_are_joined(rig: TokenRig, never: None) -> None:
    async with rig.tokens as tokens:
        for piece in ("so \ud83d", "\ude00", "\ud83d", " \ude00 ", "\ud83d"):
            await tokens.text(piece)
    joined = "".join(await rig.deltas())
    assert joined == "so 😀� � �"
    assert joined == fix_surrogates("so \ud83d\ude00\ud83d \ude00 \ud83d")


def test_valid_text_is_unchanged() -> None:
    text = "e\u0301 \u0000 \u2028 👩‍👩‍👧 مرحبا"
    assert fix_surrogates(text) is text


async def test_a_huge_piece_makes_many_small_events(rig: TokenRig) -> None:
    huge = "\x00e\u0301👩\u200d👧" * 20_000
    async with rig.tokens as tokens:
        await tokens.text(huge)
    pieces = await rig.deltas()
    assert "".join(pieces) == huge
    assert max(len(json.dumps(piece)) for piece in pieces) < contexts.MAX_EVENT_BYTES / 4
    assert not [piece for piece in pieces if piece[0] in "\u0301\u200d"]
    assert len(pieces) < 100


async def test_endless_combining_marks_are_cut(rig: TokenRig) -> None:
    async with rig.tokens as tokens:
        await tokens.text("\u0301" * 50_000)
    assert "".join(await rig.deltas()) == "\u0301" * 50_000


# -- trouble --------------------------------------------------------------------------------------


async def test_the_model_waits_while_redis_lags(rig: TokenRig, monkeypatch: Any) -> None:
    monkeypatch.setattr(contexts, "MAX_UNSENT_EVENTS", 4)
    rig.store.open.clear()
    said: list[int] = []

    async def talk() -> None:
        async with rig.tokens as tokens:
            for number in range(20):
                await tokens.text(f"{number:04} " + "x" * 600)
                said.append(number)

    talking = asyncio.create_task(talk())
    await eventually(lambda: len(said) == 4)
    await asyncio.sleep(0.1)  # longer than the timer
    assert said == [0, 1, 2, 3]
    rig.store.open.set()
    await asyncio.wait_for(talking, 5)
    assert [int(delta[:4]) for delta in await rig.deltas()] == list(range(20))
    assert rig.timers == []


async def test_a_timer_waits_too_and_tries_again(rig: TokenRig, monkeypatch: Any) -> None:
    monkeypatch.setattr(contexts, "MAX_UNSENT_EVENTS", 1)
    rig.store.open.clear()
    await rig.tokens.text("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await rig.context.emit("noise")  # fills the buffer
    await rig.tokens.text("b")
    await asyncio.sleep(0.1)
    assert len(rig.timers) == 1
    rig.store.open.set()
    await eventually(lambda: len(rig.store.events) == 3)
    assert [json.loads(event.data).get("delta") for event in rig.store.events] == ["a", None, "b"]
    assert rig.timers == []


async def test_a_lost_attempt_is_raised_by_the_next_write(rig: TokenRig) -> None:
    await rig.tokens.text("a")
    await rig.tokens.text("b")
    rig.buffer.lost = True
    await eventually(lambda: not rig.timers)
    with pytest.raises(AttemptLost):
        await rig.tokens.text("c" * 600)
    assert rig.timers == []


async def test_an_error_leaves_no_timer_and_loses_no_text(rig: TokenRig) -> None:
    async def fail() -> None:
        async with rig.tokens as tokens:
            await tokens.text("a")
            await tokens.text("b\ud83d")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert "".join(await rig.deltas()) == "ab�"
    assert rig.timers == []


async def test_without_text_no_event_is_emitted(rig: TokenRig) -> None:
    async with rig.tokens as tokens:
        await tokens.text("")
        await tokens.reasoning("")
    assert await rig.seen() == []
