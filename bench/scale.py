"""Sizes of a run: quick for a check, full for reliable numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Rounds and sizes of every measurement."""

    name: str
    rounds: int
    #: Jobs per drain. Fast workers need many, so that a drain takes long enough to measure.
    fast_jobs: int
    naive_jobs: int
    warmup_jobs: int
    requests: int
    #: Numbers of open event streams, one measurement each.
    watchers: tuple[int, ...]
    fanout_rounds: int
    events_per_s: int
    events: int
    #: Events per watcher that are published as fast as possible.
    burst_per_watcher: int
    backlogs: tuple[int, ...]
    growth_rounds: int
    enqueues: int
    #: Number of model answers whose token latency is measured.
    answers: int
    #: Workflows run one after the other, and concurrently.
    workflows: int
    parallel_workflows: int
    #: Large images per round, images processed while `/healthz` is measured, and images for memory.
    image_rounds: int
    images: int
    health_images: int
    memory_images: int
    #: Jobs per drain of a BullMQ queue.
    bullmq_jobs: int


FULL = Scale(
    name="full", rounds=7, fast_jobs=20_000, naive_jobs=3_000, warmup_jobs=500, requests=6_000,
    watchers=(500, 2_000), fanout_rounds=3, events_per_s=1_000, events=5_000, burst_per_watcher=5,
    backlogs=(1_000, 10_000, 100_000), growth_rounds=2, enqueues=3_000, answers=60,
    workflows=40, parallel_workflows=100, image_rounds=3, images=24, health_images=50,
    memory_images=300, bullmq_jobs=20_000,
)  # fmt: skip
QUICK = Scale(
    name="quick", rounds=2, fast_jobs=6_000, naive_jobs=1_000, warmup_jobs=300, requests=1_500,
    watchers=(200, 500), fanout_rounds=1, events_per_s=1_000, events=1_000, burst_per_watcher=5,
    backlogs=(500, 2_000, 10_000), growth_rounds=1, enqueues=1_000, answers=15,
    workflows=10, parallel_workflows=20, image_rounds=1, images=6, health_images=10,
    memory_images=60, bullmq_jobs=3_000,
)  # fmt: skip
