"""`python -m bench.simulation`: projects the throughput of many nodes from the cost of one job.

A model, not a measurement: work is CPU time, and the resource that is exhausted first is the limit.
It reads `bench/measured.json`, which `make bench-peers` and `python -m bench.scaling` write.
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
    """The machines, and how they are used."""

    #: Cores per machine: one for Redis, which is single-threaded, the others for gateway and
    #: workers.
    cores: int = 4
    #: Maximum utilization of a core.
    busy: float = 0.8
    #: Partitions per node.
    partitions_each: int = 1
    #: Slots per worker.
    slots: int = 64
    #: Maximum jobs per script call.
    batch: int = 16
    #: Hints per batch: when its jobs begin, and when they end.
    hints_a_batch: float = 2.0
    #: True if each worker reads all partitions, False if only as many as its slots can fill.
    reads_all: bool = True
    #: True if hints go to every node and gateway, False if only to gateways that watch the
    #: partition.
    hints_to_all: bool = True


@dataclass(frozen=True)
class Projection:
    """Throughput of a number of nodes, and its limit."""

    nodes: int
    jobs_per_s: float
    redis_us: float
    others_us: float
    limit: str

    @property
    def cpu_us(self) -> float:
        """CPU time per job in all processes."""
        return self.redis_us + self.others_us


def project(nodes: int, cost: Measured, fleet: Fleet) -> Projection:
    """Jobs per second, from the POST to the end of the job."""
    batch = _batch(nodes, fleet)
    hints = fleet.hints_a_batch / batch
    redis_us = cost.redis_enqueue_us + _cost_in_batch(batch, cost.redis_16_us, cost.redis_4_us)
    others_us = cost.gateway_us + _cost_in_batch(batch, cost.worker_16_us, cost.worker_4_us)
    if fleet.hints_to_all:
        redis_us += hints * (nodes - 1) * (cost.bus_send_us + cost.bus_hear_us)
        others_us += hints * nodes * cost.hint_us  # one gateway on each node receives all hints
    else:
        others_us += hints * cost.hint_us
    redis_limit = nodes * fleet.busy * 1e6 / redis_us
    others_limit = nodes * (fleet.cores - 1) * fleet.busy * 1e6 / others_us
    limit = "Redis" if redis_limit < others_limit else "gateways and workers"
    return Projection(nodes, min(redis_limit, others_limit), redis_us, others_us, limit)


def _batch(nodes: int, fleet: Fleet) -> float:
    """Jobs per script call: a worker's slots divided by the number of partitions that it reads."""
    read = nodes * fleet.partitions_each if fleet.reads_all else 1
    return max(1.0, min(fleet.batch, fleet.slots / read))


def _cost_in_batch(batch: float, cost_16_us: float, cost_4_us: float) -> float:
    """Cost of a job in a batch: its own part, and its share of the cost of the call."""
    call_us = max(cost_4_us - cost_16_us, 0.0) / (1 / 4 - 1 / 16)
    return cost_16_us - call_us / 16 + call_us / batch


#: The current design, and one with the two most important improvements.
CURRENT = Fleet()
SEPARATED = Fleet(reads_all=False, hints_to_all=False)


def table(cost: Measured) -> Table:
    """One row per number of nodes."""
    rows: Table = [
        ("nodes", "jobs/s", "x one node", "CPU µs/job", "limited by", "jobs/s, workers and hints "
         "separated", "x one node"),
    ]  # fmt: skip
    first, first_separated = project(1, cost, CURRENT), project(1, cost, SEPARATED)
    for nodes in NODES:
        now, separated = project(nodes, cost, CURRENT), project(nodes, cost, SEPARATED)
        rows.append(
            (
                f"{nodes}", f"{now.jobs_per_s:,.0f}",
                f"{now.jobs_per_s / first.jobs_per_s:.1f}", f"{now.cpu_us:,.0f}", now.limit,
                f"{separated.jobs_per_s:,.0f}",
                f"{separated.jobs_per_s / first_separated.jobs_per_s:.1f}",
            )
        )  # fmt: skip
    return rows


def partition_table(cost: Measured) -> Table:
    """Sixteen nodes with more or fewer partitions than nodes."""
    nodes = 16
    rows: Table = [("partitions on 16 nodes", "nodes in use", "jobs/s", "CPU µs/job")]
    for partitions in (1, 4, 8, 16, 32, 64):
        used = min(nodes, partitions)
        fleet = Fleet(partitions_each=max(1, partitions // nodes))
        found = project(used, cost, fleet)
        # Redis is the limit on the nodes in use; gateways and workers of the other nodes help.
        others = nodes * (fleet.cores - 1) * fleet.busy * 1e6 / found.others_us
        redis = used * fleet.busy * 1e6 / found.redis_us
        rows.append(
            (f"{partitions}", f"{used}", f"{min(others, redis):,.0f}", f"{found.cpu_us:,.0f}")
        )
    return rows


def draw(cost: Measured) -> str:
    canvas = Canvas()
    canvas.title("Projected throughput", "thousands of jobs per second by number of nodes; a model")
    now = [project(nodes, cost, CURRENT).jobs_per_s / 1000 for nodes in NODES]
    separated = [project(nodes, cost, SEPARATED).jobs_per_s / 1000 for nodes in NODES]
    canvas.curve(
        [f"{nodes}" for nodes in NODES],
        {"current": ("#0969da", now), "separated": ("#1a7f37", separated)},
    )
    return canvas.render()


def section(cost: Measured) -> str:
    fleet = CURRENT
    return f"""## {HEADING}

![Projected throughput]({PICTURE})

A model, not a measurement: the throughput of many machines, projected from the measured cost of a
job. The resource that runs out of CPU first is the limit.

{as_markdown(table(cost))}

{as_markdown(partition_table(cost))}

Assumptions of the model:

- A node is a machine with {fleet.cores} cores: one for Redis (a master, one thread), the others
  shared by its gateway and its workers. A core is used at most {fleet.busy:.0%}.
- A job is the echo of *Worker drain*, submitted over HTTP, without other work. Jobs that run
  for a millisecond or more are limited by that, and need more workers rather than more Redis.
- Measured, in microseconds of CPU: a POST takes {cost.gateway_us:.0f} in the gateway and
  {cost.redis_enqueue_us:.0f} in Redis; a job takes {cost.worker_16_us:.0f} in the worker and
  {cost.redis_16_us:.0f} in Redis with 16 jobs per script call, {cost.worker_4_us:.0f} and
  {cost.redis_4_us:.0f} with 4. For other batch sizes, a call has a fixed cost that its jobs share.
- One partition per node, with evenly distributed jobs. A worker has {fleet.slots} slots and reads
  every partition, so that with many partitions few jobs share a call.
- A Cluster forwards published messages to all nodes: a hint costs the sending node
  {cost.bus_send_us:.1f} per other node, each receiving node {cost.bus_hear_us:.1f}, and each
  gateway {cost.hint_us:.1f}. There are {fleet.hints_a_batch:.0f} hints per script call.
- No replicas, no `WAIT`, no network limits, no event streams. Latency between machines makes
  batches larger, not smaller.

*Separated* is the projection for workers that read only as many partitions as their slots can fill,
and hints that go only to gateways that watch the partition (`SPUBLISH`, Redis 7). These are the two
improvements to make before using a hundred nodes.
"""


def write(cost: Measured) -> list[Path]:
    """Writes the section and its chart; returns their paths."""
    page, picture = _DOCS / "benchmarks.md", _DOCS / PICTURE
    picture.write_text(draw(cost))
    page.write_text(put(page.read_text(), HEADING, section(cost)))
    return [page, picture]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument(
        "--write-docs", action="store_true", help="write the section of docs/benchmarks.md"
    )
    options = parser.parse_args()
    try:
        cost = load()
    except OSError:
        print(
            f"no measurements: {PATH.name} is missing; run `python -m bench.scaling --write-docs`",
            file=sys.stderr,
        )
        return 1
    print(as_text(table(cost)), as_text(partition_table(cost)), sep="\n\n")
    if options.write_docs:
        for path in write(cost):
            print(f"wrote {path.parent.name}/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
