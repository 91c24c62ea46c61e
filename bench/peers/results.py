"""Results of the comparison, and conclusions: medians, ratios, goals."""

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
    """All measurements of one run."""

    scale: str
    redis_version: str
    load_before: Load
    load_during: Load
    #: By system; one that failed has no rounds, and a reason in `failures`.
    rounds: dict[str, list[Round]]
    failures: dict[str, str]
    idle_mb: dict[str, float]
    versions: dict[str, str]

    @property
    def quiet(self) -> bool:
        """True if no other load was on the machine before and during the run."""
        return self.load_before.quiet and self.load_during.quiet

    @property
    def finished(self) -> list[str]:
        """Systems that finished all rounds, in the order of FIELD."""
        return [key for key in BY_KEY if self.rounds.get(key) and key not in self.failures]

    @property
    def peers(self) -> list[str]:
        return [key for key in self.finished if key not in OURS]

    @property
    def python_peers(self) -> list[str]:
        return [key for key in self.peers if BY_KEY[key].python]

    def middle(self, key: str, number: Callable[[Round], float]) -> float:
        return middle(self.rounds[key], number)

    def p50(self, key: str) -> float:
        """Milliseconds from submission to result, median of the rounds' medians."""
        return self.middle(key, lambda row: median(row.latencies_ms))

    def p95(self, key: str) -> float:
        """Like `p50`, for the 95th percentile."""
        return self.middle(key, lambda row: percentile(row.latencies_ms, 95))

    def best_python(self) -> str | None:
        """The fastest Python system."""
        peers = self.python_peers
        return max(peers, key=lambda key: self.middle(key, _drain)) if peers else None

    def drain_ratio(self, *others: str) -> float:
        """Jobs per second, Sluice ÷ the best of these in the same round; median of the rounds."""
        rounds: Iterable[tuple[Round, ...]] = zip(*(self.rounds[key] for key in (SLUICE, *others)))
        return median([ours.drain_per_s / max(map(_drain, theirs)) for ours, *theirs in rounds])

    def latency_ratio(self, ours: str) -> float:
        """Sluice's p50 ÷ the lowest of all other systems per round; median of the rounds."""
        rounds: Iterable[tuple[Round, ...]] = zip(
            *(self.rounds[key] for key in (ours, *self.peers))
        )
        middles = ([median(row.latencies_ms) for row in rows] for rows in rounds)
        return median([first / min(others) for first, *others in middles])

    def goals(self) -> list[Goal]:
        """Goals and whether they are met; systems that failed are not compared."""
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
            goals.append(_counted("Redis bytes per finished job", bytes_left, BYTES_GOAL))
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
        return Goal(name, found, wanted, verdict if self.quiet else Verdict.NOT_EVALUATED)

    def save(self, path: Path) -> None:
        goals = [asdict(goal) for goal in self.goals()]
        path.write_text(json.dumps({**asdict(self), "goals": goals}, indent=1) + "\n")


def percentile(numbers: list[float], percent: int) -> float:
    if len(numbers) < 2:
        return numbers[0]
    return quantiles(numbers, n=100, method="inclusive")[percent - 1]


def _counted(name: str, found: float, at_most: float) -> Goal:
    """A goal that is not a time is evaluated even if the machine is busy."""
    verdict = Verdict.MET if found <= at_most else Verdict.MISSED
    return Goal(name, found, f"<= {at_most:g}", verdict)


def _drain(row: Round) -> float:
    return row.drain_per_s
