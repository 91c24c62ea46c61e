"""What a run of the field found, and what is concluded from it: medians, ratios, verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from bench.machine import Load
from bench.peers.field import BY_KEY, NODE, SLUICE, SLUICE_HTTP
from bench.peers.measure import Round
from bench.results import Goal, Verdict, middle

PYTHON_GOAL = 5.0
NODE_GOAL = 1.5
LATENCY_GOAL = 1.0
IDLE_MB_GOAL = 50.0
BYTES_GOAL = 3 * 1024
OURS = (SLUICE, SLUICE_HTTP)


@dataclass(frozen=True)
class FieldResults:
    """Everything measured in one run of the field."""

    scale: str
    redis_version: str
    load_before: Load
    load_during: Load
    #: By system; one that failed has no rounds, and a reason.
    rounds: dict[str, list[Round]]
    failures: dict[str, str]
    idle_mb: dict[str, float]
    versions: dict[str, str]

    @property
    def quiet(self) -> bool:
        """Whether the machine was ours, before the run and during it."""
        return self.load_before.quiet and self.load_during.quiet

    @property
    def finished(self) -> list[str]:
        """Who got through all rounds, as the field has them."""
        return [key for key in BY_KEY if self.rounds.get(key) and key not in self.failures]

    @property
    def peers(self) -> list[str]:
        """Those who are not we."""
        return [key for key in self.finished if key not in OURS]

    @property
    def python_peers(self) -> list[str]:
        """Those of them that are Python."""
        return [key for key in self.peers if BY_KEY[key].python]

    def middle(self, key: str, number: Callable[[Round], float]) -> float:
        """The median of one column."""
        return middle(self.rounds[key], number)

    def p50(self, key: str) -> float:
        """Milliseconds from handing in to knowing the result, median of the rounds' medians."""
        return self.middle(key, lambda row: median(row.latencies_ms))

    def p95(self, key: str) -> float:
        """The same for the slowest twentieth."""
        return self.middle(key, lambda row: percentile(row.latencies_ms, 95))

    def best_python(self) -> str | None:
        """Who of them drains fastest."""
        peers = self.python_peers
        return max(peers, key=lambda key: self.middle(key, _drain)) if peers else None

    def drain_ratio(self, *others: str) -> float:
        """Jobs per second, ours ÷ the best of these in the same round; median of the rounds."""
        rounds: Iterable[tuple[Round, ...]] = zip(*(self.rounds[key] for key in (SLUICE, *others)))
        return median([ours.drain_per_s / max(map(_drain, theirs)) for ours, *theirs in rounds])

    def latency_ratio(self, ours: str) -> float:
        """Our p50 ÷ the lowest of all peers in the same round; median of the rounds."""
        rounds: Iterable[tuple[Round, ...]] = zip(
            *(self.rounds[key] for key in (ours, *self.peers))
        )
        middles = ([median(row.latencies_ms) for row in rows] for rows in rounds)
        return median([first / min(others) for first, *others in middles])

    def goals(self) -> list[Goal]:
        """What we want to be, and whether we are; a system that failed is compared with nobody."""
        goals = []
        if SLUICE in self.finished:
            if self.python_peers:
                ratio = self.drain_ratio(*self.python_peers)
                goals.append(
                    self._timed("drain, Sluice / best Python peer", ratio, at_least=PYTHON_GOAL)
                )
            if NODE in self.peers:
                ratio = self.drain_ratio(NODE)
                goals.append(
                    self._timed("drain, Sluice / BullMQ on Node", ratio, at_least=NODE_GOAL)
                )
            bytes_left = self.middle(SLUICE, lambda row: row.redis_memory_bytes)
            goals.append(_counted("Redis bytes a finished job", bytes_left, BYTES_GOAL))
        names = {
            SLUICE: "e2e p50, Sluice / fastest peer",
            SLUICE_HTTP: "e2e p50, Sluice over HTTP / fastest peer",
        }
        for key in (key for key in OURS if key in self.finished and self.peers):
            goals.append(self._timed(names[key], self.latency_ratio(key), below=LATENCY_GOAL))
        if SLUICE in self.idle_mb:
            goals.append(_counted("idle worker, MB", self.idle_mb[SLUICE], IDLE_MB_GOAL))
        return goals

    def _timed(
        self, name: str, found: float, *, at_least: float | None = None, below: float = 0.0
    ) -> Goal:
        wanted = f"< {below:g}" if at_least is None else f">= {at_least:g}"
        met = found < below if at_least is None else found >= at_least
        verdict = Verdict.MET if met else Verdict.MISSED
        return Goal(name, found, wanted, verdict if self.quiet else Verdict.NOT_JUDGED)

    def save(self, path: Path) -> None:
        """Everything as JSON."""
        goals = [asdict(goal) for goal in self.goals()]
        path.write_text(json.dumps({**asdict(self), "goals": goals}, indent=1) + "\n")


def percentile(numbers: list[float], percent: int) -> float:
    """Below which so many per cent of the numbers lie."""
    if len(numbers) < 2:
        return numbers[0]
    return quantiles(numbers, n=100, method="inclusive")[percent - 1]


def _counted(name: str, found: float, at_most: float) -> Goal:
    """No time: it stands however busy the machine is."""
    verdict = Verdict.MET if found <= at_most else Verdict.MISSED
    return Goal(name, found, f"<= {at_most:g}", verdict)


def _drain(row: Round) -> float:
    return row.drain_per_s
