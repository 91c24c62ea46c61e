"""What a job was found to cost, kept between runs: the simulation starts from these numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

PATH = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Measured:
    """Microseconds of CPU."""

    #: Of Redis for a job that comes in.
    redis_enqueue_us: float = 0.0
    #: Of the gateway, with all of HTTP.
    gateway_us: float = 0.0
    #: Of Redis and of the worker for all that becomes of a job, where a script call carries 16
    #: jobs, and where it carries 4.
    redis_16_us: float = 0.0
    redis_4_us: float = 0.0
    worker_16_us: float = 0.0
    worker_4_us: float = 0.0
    #: Of a node of a Cluster, for one hint that it passes on to another node, and for one that it
    #: is passed; of a gateway, for one that it hears.
    bus_send_us: float = 0.0
    bus_hear_us: float = 0.0
    hint_us: float = 0.0


def load(path: Path = PATH) -> Measured:
    """What was kept; raises OSError where nothing was."""
    kept = json.loads(path.read_text())
    return Measured(
        **{each.name: kept[each.name] for each in fields(Measured) if each.name in kept}
    )


def keep(path: Path = PATH, **found: float) -> Measured:
    """Keep what this run has found, beside what others have."""
    try:
        known = load(path)
    except OSError:
        known = Measured()
    measured = replace(known, **found)
    numbers = {name: round(number, 3) for name, number in asdict(measured).items()}
    path.write_text(json.dumps(numbers, indent=1) + "\n")
    return measured
