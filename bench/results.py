"""Results of a run, and conclusions: medians, ratios, goals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench.bullmq import Bullmq
from bench.drain import Drain, Memory
from bench.fanout import Fanout
from bench.first_token import FirstToken
from bench.growth import Cost
from bench.images import Images
from bench.machine import Load
from bench.post import Posts
from bench.workflows import Workflows

DRAIN_GOAL = 8.0
POST_GOAL = 0.85
SSE_MS_GOAL = 3.0
CONNECTIONS_GOAL = 8
FIRST_TOKEN_MS_GOAL = 25.0
TRANSITION_MS_GOAL = 25.0
DECISION_MS_GOAL = 100.0
IMAGES_GOAL = 0.85
HEALTHZ_MS_GOAL = 50.0
BULLMQ_GOAL = 1.2
BULLMQ_MEMORY_GOAL = 0.5
#: Maximum ratio of a worker's memory after many images to that after some.
MEMORY_WITHIN = 1.2
#: Maximum ratio of the most expensive backlog to the first for a flat curve.
FLAT_WITHIN = 1.5

Row = TypeVar("Row")


class Verdict(str, Enum):
    """Whether a goal is met."""

    MET = "met"
    MISSED = "MISSED"
    NOT_EVALUATED = "not evaluated: machine busy"


@dataclass(frozen=True)
class Goal:
    """A measured value, its target, and whether it is met."""

    name: str
    found: float
    wanted: str
    verdict: Verdict


@dataclass(frozen=True)
class Results:
    """All measurements of one run."""

    scale: str
    redis_version: str
    load_before: Load
    load_during: Load
    drains: dict[str, list[Drain]]
    memory: dict[str, Memory]
    posts: dict[str, list[Posts]]
    fanouts: dict[str, list[Fanout]]
    growth: list[list[Cost]]
    first_token: dict[str, FirstToken]
    workflows: Workflows
    images: Images
    #: None if Node is not installed.
    bullmq: Bullmq | None = None

    @property
    def quiet(self) -> bool:
        """True if no other load was on the machine before and during the run."""
        return self.load_before.quiet and self.load_during.quiet

    @property
    def drain_ratio(self) -> float:
        """Jobs per second, Sluice ÷ naive worker."""
        pairs = zip(self.drains["ours"], self.drains["naive"])
        return median([ours.jobs_per_s / naive.jobs_per_s for ours, naive in pairs])

    @property
    def floor_share(self) -> float:
        """Jobs per second, Sluice ÷ the Redis floor."""
        pairs = zip(self.drains["ours"], self.drains["floor"])
        return median([ours.jobs_per_s / floor.jobs_per_s for ours, floor in pairs])

    @property
    def post_ratio(self) -> float:
        """Requests per second, Sluice ÷ empty route."""
        pairs = zip(self.posts["ours"], self.posts["empty"])
        return median([ours.requests_per_s / empty.requests_per_s for ours, empty in pairs])

    @property
    def growth_medians(self) -> list[Cost]:
        """One point per backlog."""
        return [
            Cost(
                points[0].backlog,
                middle(points, lambda cost: cost.worker_cpu_us),
                middle(points, lambda cost: cost.redis_cpu_us),
                middle(points, lambda cost: cost.enqueue_us),
                middle(points, lambda cost: cost.refuse_us),
            )
            for points in zip(*self.growth)
        ]

    @property
    def fanout_pairs(self) -> list[tuple[Fanout, Fanout]]:
        """Sluice and naive for each number of clients, medians of the rounds."""
        counts = sorted({row.clients for row in self.fanouts["ours"]})
        return [
            (
                _median_fanout(self.fanouts["ours"], count),
                _median_fanout(self.fanouts["naive"], count),
            )
            for count in counts
        ]

    @property
    def fanout_rounds(self) -> int:
        return len(self.fanouts["ours"]) // len(self.fanout_pairs)

    def goals(self) -> list[Goal]:
        """Performance goals and whether they are met."""
        curve = self.growth_medians
        worker = _spread([cost.worker_cpu_us for cost in curve])
        enqueue = _spread([cost.enqueue_us for cost in curve])
        fullest = self.fanout_pairs[-1][0]
        connections = max(row.redis_connections for row in self.fanouts["ours"])
        return [
            self._goal("worker drain, Sluice / naive", self.drain_ratio, at_least=DRAIN_GOAL),
            self._goal("POST, Sluice / empty route", self.post_ratio, at_least=POST_GOAL),
            self._goal(
                f"SSE, {fullest.clients:,} clients, p50 ms", fullest.p50_ms, at_most=SSE_MS_GOAL
            ),
            Goal(
                "Redis connections of the gateway",
                connections,
                f"<= {CONNECTIONS_GOAL}",
                # A count, not a time: evaluated even if the machine is busy.
                Verdict.MET if connections <= CONNECTIONS_GOAL else Verdict.MISSED,
            ),
            self._goal("worker CPU per job, highest / first backlog", worker, at_most=FLAT_WITHIN),
            self._goal("enqueue, highest / first backlog", enqueue, at_most=FLAT_WITHIN),
            self._goal(
                "first token, model server to SSE client, ms",
                self.first_token["ours"].first_p50_ms,
                at_most=FIRST_TOKEN_MS_GOAL,
            ),
            self._goal(
                "workflow, step to step, p95 ms",
                self.workflows.transition_p95_ms,
                at_most=TRANSITION_MS_GOAL,
            ),
            self._goal(
                "workflow, decision to next step, p95 ms",
                self.workflows.decision_p95_ms,
                at_most=DECISION_MS_GOAL,
            ),
            self._goal("images, Sluice / raw Pillow", self.images.ratio, at_least=IMAGES_GOAL),
            self._goal(
                "/healthz with large images, p99 ms",
                self.images.healthz_p99_ms,
                at_most=HEALTHZ_MS_GOAL,
            ),
            self._goal(
                "worker memory, many images / some",
                self.images.last_mb / self.images.settled_mb,
                at_most=MEMORY_WITHIN,
            ),
            *self._bullmq_goals(),
        ]

    def _bullmq_goals(self) -> list[Goal]:
        if self.bullmq is None:
            return []
        memory = self.bullmq.memory_ratio
        return [
            self._goal("BullMQ drain, Sluice / Node", self.bullmq.ratio, at_least=BULLMQ_GOAL),
            Goal(
                "BullMQ worker memory, Sluice / Node",
                memory,
                f"<= {BULLMQ_MEMORY_GOAL:g}",
                # Not a time either.
                Verdict.MET if memory <= BULLMQ_MEMORY_GOAL else Verdict.MISSED,
            ),
        ]

    def _goal(
        self, name: str, found: float, *, at_least: float = 0.0, at_most: float = float("inf")
    ) -> Goal:
        wanted = f">= {at_least:g}" if at_least else f"<= {at_most:g}"
        met = Verdict.MET if at_least <= found <= at_most else Verdict.MISSED
        return Goal(name, found, wanted, met if self.quiet else Verdict.NOT_EVALUATED)

    def save(self, path: Path) -> None:
        goals = [asdict(goal) for goal in self.goals()]
        path.write_text(json.dumps({**asdict(self), "goals": goals}, indent=1) + "\n")


def middle(rows: Sequence[Row], number: Callable[[Row], float]) -> float:
    return median([number(row) for row in rows])


def _median_fanout(rows: Sequence[Fanout], clients: int) -> Fanout:
    chosen = [asdict(row) for row in rows if row.clients == clients]
    middles = {name: median([row[name] for row in chosen]) for name in chosen[0]}
    middles["redis_connections"] = max(row["redis_connections"] for row in chosen)
    return Fanout(**{**middles, "clients": clients})


def _spread(costs: list[float]) -> float:
    """Ratio of the highest cost to the first; at least 1."""
    return max(costs) / costs[0]
