"""`python -m bench.simulation`: how far many nodes would carry, from what one job costs.

A model, not a measurement: work is CPU time, and whatever runs out first is the limit. It takes its
numbers from `bench/measured.json`, which `make bench-peers` and `python -m bench.scaling` keep.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.measured import PATH, Measured, load
from bench.report import Table, as_markdown, as_text
from bench.sections import put
from bench.svg import Canvas

HEADING = "A hundred nodes"
PICTURE = "benchmarks-nodes.svg"
NODES = (1, 2, 4, 8, 16, 32, 64, 100)
_DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True)
class Fleet:
    """What the machines are, and how they are used."""

    #: Of one machine: one core is its Redis, which has one thread; the rest are the others'.
    cores: int = 4
    #: How busy a core may be before what waits for it waits long.
    busy: float = 0.8
    #: Partitions for each node.
    partitions_each: int = 1
    #: Jobs that one worker may run at once.
    places: int = 64
    #: Most jobs that one script call carries.
    batch: int = 16
    #: Hints that a batch makes: when its jobs begin, and when they end.
    hints_a_batch: float = 2.0
    #: Whether each worker reads all partitions, or keeps to as many as its places are good for.
    reads_all: bool = True
    #: Whether hints go to every node and gateway, or only to gateways that watch a partition.
    hints_to_all: bool = True


@dataclass(frozen=True)
class Projection:
    """What so many nodes carry, and what keeps them from more."""

    nodes: int
    jobs_per_s: float
    redis_us: float
    others_us: float
    limit: str

    @property
    def cpu_us(self) -> float:
        """CPU time of a job, all processes."""
        return self.redis_us + self.others_us


def project(nodes: int, cost: Measured, fleet: Fleet) -> Projection:
    """Jobs a second, from the POST to the end of the job."""
    batch = _batch(nodes, fleet)
    hints = fleet.hints_a_batch / batch
    redis_us = cost.redis_enqueue_us + _at(batch, cost.redis_16_us, cost.redis_4_us)
    others_us = cost.gateway_us + _at(batch, cost.worker_16_us, cost.worker_4_us)
    if fleet.hints_to_all:
        redis_us += hints * (nodes - 1) * (cost.bus_send_us + cost.bus_hear_us)
        others_us += hints * nodes * cost.hint_us  # one gateway on each node hears them all
    else:
        others_us += hints * cost.hint_us
    redis_limit = nodes * fleet.busy * 1e6 / redis_us
    others_limit = nodes * (fleet.cores - 1) * fleet.busy * 1e6 / others_us
    limit = "Redis" if redis_limit < others_limit else "gateways and workers"
    return Projection(nodes, min(redis_limit, others_limit), redis_us, others_us, limit)


def _batch(nodes: int, fleet: Fleet) -> float:
    """Jobs in a script call: a worker's places, divided among the partitions that it reads."""
    read = nodes * fleet.partitions_each if fleet.reads_all else 1
    return max(1.0, min(fleet.batch, fleet.places / read))


def _at(batch: float, price_16_us: float, price_4_us: float) -> float:
    """A job's price in a batch: its own part, and its share of what the call costs."""
    call_us = max(price_4_us - price_16_us, 0.0) / (1 / 4 - 1 / 16)
    return price_16_us - call_us / 16 + call_us / batch


#: As it is today, and with the two things that would matter most.
TODAY = Fleet()
TOMORROW = Fleet(reads_all=False, hints_to_all=False)


def table(cost: Measured) -> Table:
    """One row a number of nodes."""
    rows: Table = [
        ("nodes", "jobs/s", "x one node", "CPU us/job", "limited by", "jobs/s, workers and hints "
         "kept apart", "x one node"),
    ]  # fmt: skip
    first, first_apart = project(1, cost, TODAY), project(1, cost, TOMORROW)
    for nodes in NODES:
        now, apart = project(nodes, cost, TODAY), project(nodes, cost, TOMORROW)
        rows.append(
            (
                f"{nodes}", f"{now.jobs_per_s:,.0f}",
                f"{now.jobs_per_s / first.jobs_per_s:.1f}", f"{now.cpu_us:,.0f}", now.limit,
                f"{apart.jobs_per_s:,.0f}", f"{apart.jobs_per_s / first_apart.jobs_per_s:.1f}",
            )
        )  # fmt: skip
    return rows


def partition_table(cost: Measured) -> Table:
    """Sixteen nodes with more or fewer partitions than nodes."""
    nodes = 16
    rows: Table = [("partitions on 16 nodes", "nodes in use", "jobs/s", "CPU us/job")]
    for partitions in (1, 4, 8, 16, 32, 64):
        used = min(nodes, partitions)
        fleet = Fleet(partitions_each=max(1, partitions // nodes))
        found = project(used, cost, fleet)
        # Redis of the nodes in use is the limit; gateways and workers of the others help.
        others = nodes * (fleet.cores - 1) * fleet.busy * 1e6 / found.others_us
        redis = used * fleet.busy * 1e6 / found.redis_us
        rows.append(
            (f"{partitions}", f"{used}", f"{min(others, redis):,.0f}", f"{found.cpu_us:,.0f}")
        )
    return rows


def draw(cost: Measured) -> str:
    """Both lines, in thousands of jobs a second."""
    canvas = Canvas()
    canvas.title(
        "Projected throughput", "thousands of jobs a second by the number of nodes; a model"
    )
    now = [project(nodes, cost, TODAY).jobs_per_s / 1000 for nodes in NODES]
    apart = [project(nodes, cost, TOMORROW).jobs_per_s / 1000 for nodes in NODES]
    canvas.curve(
        [f"{nodes}" for nodes in NODES],
        {"as it is": ("#0969da", now), "kept apart": ("#1a7f37", apart)},
    )
    return canvas.render()


def section(cost: Measured) -> str:
    """The section of the page."""
    fleet = TODAY
    return f"""## {HEADING}

![Projected throughput]({PICTURE})

A model, not a measurement: what jobs cost here, and what many machines would carry at that price.
Whatever runs out of CPU first is the limit.

{as_markdown(table(cost))}

{as_markdown(partition_table(cost))}

What the model assumes:

- A node is a machine with {fleet.cores} cores: one is its Redis (a master, one thread), the others
  are for its gateway and its workers, which share them as they need. A core is used to
  {fleet.busy:.0%}, so that nothing waits long for it.
- A job is the echo of *Worker drain*, comes in by HTTP and does no work of its own. Jobs that work
  for a millisecond or more are limited by that, and need more workers, not more of Redis.
- Found by measurement, in microseconds of CPU: a POST {cost.gateway_us:.0f} in the gateway and
  {cost.redis_enqueue_us:.0f} in Redis; a job {cost.worker_16_us:.0f} in the worker and
  {cost.redis_16_us:.0f} in Redis where 16 share a script call, {cost.worker_4_us:.0f} and
  {cost.redis_4_us:.0f} where 4 do; between and beyond, a call has a fixed price that its jobs
  share.
- One partition for each node, jobs spread evenly. A worker has {fleet.places} places and reads
  every partition, so that with many partitions few jobs share a call.
- A Cluster tells each node what was published on any of them: a hint costs the node that sends it
  {cost.bus_send_us:.1f} for each other node, those {cost.bus_hear_us:.1f} to hear it, and each
  gateway {cost.hint_us:.1f}. {fleet.hints_a_batch:.0f} hints for each script call's jobs.
- No replicas, no `WAIT`, no network limits, nobody who watches; latency between machines makes
  batches larger, not smaller.

*Kept apart* is what the same machines would carry if each worker kept to as many partitions as its
places are good for, and hints went only to who watches that partition (`SPUBLISH`, Redis 7): the
two things to build before anybody needs a hundred nodes.
"""


def write(cost: Measured) -> list[Path]:
    """Write the section and its picture; returns their paths."""
    page, picture = _DOCS / "benchmarks.md", _DOCS / PICTURE
    picture.write_text(draw(cost))
    page.write_text(put(page.read_text(), HEADING, section(cost)))
    return [page, picture]


def main() -> int:
    """Print, write what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="write its section of the page")
    options = parser.parse_args()
    try:
        cost = load()
    except OSError:
        print(f"nothing measured yet: {PATH.name} is missing", file=sys.stderr)
        return 1
    print(as_text(table(cost)), as_text(partition_table(cost)), sep="\n\n")
    if options.write_docs:
        for path in write(cost):
            print(f"wrote {path.parent.name}/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
