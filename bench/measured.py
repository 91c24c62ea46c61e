"""Measured costs of a job, stored between runs; the simulation uses them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

PATH = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Measured:
    """CPU time in microseconds."""

    #: Redis, for an enqueued job.
    redis_enqueue_us: float = 0.0
    #: The gateway, including HTTP.
    gateway_us: float = 0.0
    #: Redis and the worker for running a job, with 16 and with 4 jobs per script call.
    redis_16_us: float = 0.0
    redis_4_us: float = 0.0
    worker_16_us: float = 0.0
    worker_4_us: float = 0.0
    #: A Cluster node, for one hint that it forwards to another node and for one that it receives; a
    #: gateway, for one hint that it receives.
    bus_send_us: float = 0.0
    bus_hear_us: float = 0.0
    hint_us: float = 0.0


def load(path: Path = PATH) -> Measured:
    """Raises OSError if nothing was stored."""
    kept = json.loads(path.read_text())
    return Measured(
        **{each.name: kept[each.name] for each in fields(Measured) if each.name in kept}
    )


def keep(path: Path = PATH, **found: float) -> Measured:
    """Stores results of this run and keeps those of other runs."""
    try:
        known = load(path)
    except OSError:
        known = Measured()
    measured = replace(known, **found)
    numbers = {name: round(number, 3) for name, number in asdict(measured).items()}
    path.write_text(json.dumps(numbers, indent=1) + "\n")
    return measured
