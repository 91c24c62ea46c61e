"""What of the workers' own numbers is in the samples already, so that nothing is counted twice.

Workers count from their beginning, and tell so every few seconds. A sample has what was added since
the last word of each; the next keeper goes on where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common import codec
from common.contracts.stats import StatsField
from common.contracts.workers import SECONDS_BOUNDS, Spread
from common.heartbeats import Heartbeat
from gateway.stats import spread

#: A worker that began no longer ago than this before it was first seen is new, and all that it has
#: done so is too. Of any other, nobody knows how much of it is in the samples.
NEW_WITHIN_MS: Final = 120_000
#: A worker that was silent for so long is forgotten.
FORGOTTEN_MS: Final = 3_600_000
_BUCKETS: Final = len(SECONDS_BOUNDS) + 1


@dataclass(frozen=True, slots=True)
class Tally:
    """The numbers of one worker, or what they have grown by."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    end_to_end: tuple[int, ...] = (0,) * _BUCKETS
    queue_wait: tuple[int, ...] = (0,) * _BUCKETS

    @classmethod
    def of(cls, beat: Heartbeat) -> Tally:
        """What a worker has done since it began."""
        model = beat.model
        return cls(
            0 if model is None else model.prompt_tokens,
            0 if model is None else model.completion_tokens,
            _summed(beat, Spread.END_TO_END),
            _summed(beat, Spread.QUEUE_WAIT),
        )

    def since(self, before: Tally) -> Tally:
        """What was added; everything, where a number went back."""
        numbers = zip(self._flat, before._flat)
        if any(now < then for now, then in numbers):
            return self
        return Tally(
            self.prompt_tokens - before.prompt_tokens,
            self.completion_tokens - before.completion_tokens,
            tuple(now - then for now, then in zip(self.end_to_end, before.end_to_end)),
            tuple(now - then for now, then in zip(self.queue_wait, before.queue_wait)),
        )

    @property
    def _flat(self) -> tuple[int, ...]:
        return (self.prompt_tokens, self.completion_tokens, *self.end_to_end, *self.queue_wait)


@dataclass(frozen=True, slots=True)
class _Known:
    """A worker, by when it began, and what it said last."""

    started_ms: int
    seen_ms: int
    tally: Tally


class Seen:
    """What is in the samples, by worker."""

    def __init__(self, known: dict[str, _Known] | None = None) -> None:
        self._known = known or {}

    def with_news_of(self, beats: Iterable[Heartbeat], now_ms: int) -> tuple[Seen, list[Tally]]:
        """The same after these words of workers, and what each has added; it is left as it is."""
        known = {
            name: each for name, each in self._known.items() if now_ms - each.seen_ms < FORGOTTEN_MS
        }
        news: list[Tally] = []
        for beat in beats:
            before = known.get(beat.consumer)
            if before is not None and before.seen_ms == beat.seen_ms:
                continue
            tally = Tally.of(beat)
            known[beat.consumer] = _Known(beat.started_ms, beat.seen_ms, tally)
            if before is not None and before.started_ms == beat.started_ms:
                news.append(tally.since(before.tally))
            elif now_ms - beat.started_ms < NEW_WITHIN_MS:
                news.append(tally)
        return Seen(known), news

    def encode(self) -> str:
        """As it is stored."""
        return codec.dumps(
            {
                name: [
                    *(each.started_ms, each.seen_ms),
                    *(each.tally.prompt_tokens, each.tally.completion_tokens),
                    *(_sparse(each.tally.end_to_end), _sparse(each.tally.queue_wait)),
                ]
                for name, each in self._known.items()
            }
        ).decode()

    @classmethod
    def decode(cls, raw: bytes) -> Seen:
        """What a keeper has stored; nothing is known where a foreign hand has."""
        try:
            stored: Any = codec.loads(raw)
            return cls({name: _known(each) for name, each in stored.items()})
        except (AttributeError, TypeError, ValueError):
            return cls()


def total(news: Sequence[Tally]) -> tuple[dict[StatsField, int], dict[StatsField, spread.Counts]]:
    """All that was added, as the fields of a sample."""
    values = {
        StatsField.PROMPT_TOKENS: sum(each.prompt_tokens for each in news),
        StatsField.COMPLETION_TOKENS: sum(each.completion_tokens for each in news),
    }
    spreads: dict[StatsField, spread.Counts] = {
        StatsField.END_TO_END: spread.merged(_counts(each.end_to_end) for each in news),
        StatsField.QUEUE_WAIT: spread.merged(_counts(each.queue_wait) for each in news),
    }
    return values, spreads


def _known(stored: Any) -> _Known:
    started_ms, seen_ms, prompt, completion, end_to_end, queue_wait = stored
    tally = Tally(int(prompt), int(completion), _dense(end_to_end), _dense(queue_wait))
    return _Known(int(started_ms), int(seen_ms), tally)


def _summed(beat: Heartbeat, which: Spread) -> tuple[int, ...]:
    """A histogram over all tasks."""
    found = (numbers.spread(which) for numbers in beat.numbers.values())
    rows = [each.counts for each in found if each is not None]
    return tuple(map(sum, zip(*rows))) if rows else (0,) * _BUCKETS


def _counts(row: tuple[int, ...]) -> spread.Counts:
    return {bucket: count for bucket, count in enumerate(row) if count}


def _sparse(row: tuple[int, ...]) -> str:
    return spread.encode(_counts(row))


def _dense(raw: str) -> tuple[int, ...]:
    counts = spread.decode(raw)
    return tuple(counts.get(bucket, 0) for bucket in range(_BUCKETS))
