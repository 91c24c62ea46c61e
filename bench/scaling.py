"""`python -m bench.scaling`: the same jobs in one, two and four partitions, each on its own node.

Throughput is limited by the cores of the machine; the CPU time per job must not grow.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import hints, machine
from bench.jobs import Batch, create_group, is_drained, make_batch, verify
from bench.measured import keep
from bench.pipe import Pipe
from bench.process import Program, program, wait_until
from bench.report import Table, as_markdown, as_text
from bench.sections import put
from bench.server import private_redis
from sluice.common.contracts.jobs import JobKeys
from sluice.common.redis.partitions import Partitions
from tests.support.topologies import cluster

HEADING = "Partitions"
#: Maximum ratio of CPU time per job in four partitions to that in one for a flat curve.
FLAT_WITHIN = 1.5
COUNTS = (1, 2, 4)
#: Slots of a worker per partition; and few, to measure the effect of small batches.
SLOTS, FEW_SLOTS = 16, 4
#: With three nodes, two partitions are on different nodes; with two they would share one.
_MIN_MASTERS = 3
_WARMUP_TAG, _MAIN_TAG = 1, 2
_PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class PartitionServer:
    """A partition, and the server that holds it."""

    keys: JobKeys
    pipe: Pipe
    server_pid: int


@dataclass(frozen=True)
class Drained:
    """One drain of all partitions."""

    partitions: int
    jobs_per_s: float
    worker_cpu_us: float
    redis_cpu_us: float


@contextmanager
def servers(count: int) -> Iterator[tuple[str, list[PartitionServer]]]:
    """One server, or a Cluster with one node per partition; yields its URL."""
    partitions = Partitions.create(JobKeys(), count)
    with ExitStack() as stack:
        if count == 1:
            redis = stack.enter_context(private_redis(1000))
            yield redis.url, [PartitionServer(partitions.home, redis.pipe, redis.process.pid)]
            return
        nodes = stack.enter_context(cluster(max(count, _MIN_MASTERS), 0))
        partition_servers = []
        for keys in partitions.keys:
            owner = nodes.owner(nodes.slot_of(keys.queue))
            pipe = Pipe(("127.0.0.1", owner.port))
            stack.callback(pipe.close)
            partition_servers.append(PartitionServer(keys, pipe, owner.pid))
        yield nodes.url, partition_servers


def measure(count: int, jobs: int, warmup: int, slots_per_partition: int = SLOTS) -> Drained:
    """Runs as many workers as partitions; each worker reads all of them."""
    partitions = Partitions.create(JobKeys(), count)
    with servers(count) as (url, partition_servers), ExitStack() as stack:
        warm = [_batch(partitions, number, warmup, _WARMUP_TAG) for number in range(count)]
        full = [_batch(partitions, number, jobs, _MAIN_TAG) for number in range(count)]
        for partition in partition_servers:
            create_group(partition.pipe, partition.keys)
        workers = [
            stack.enter_context(
                program(
                    "sluice.worker.echo_worker", env=_env(url, count, number, slots_per_partition)
                )
            )
            for number in range(count)
        ]
        _fill(partition_servers, warm)
        _wait(partition_servers, warm, workers)
        for worker in workers:
            worker.pause()
        _fill(partition_servers, full)
        server_pids = {partition.server_pid for partition in partition_servers}
        worker_s, redis_s = _cpu([worker.pid for worker in workers]), _cpu(server_pids)
        started = time.perf_counter()
        for worker in workers:
            worker.resume()
        _wait(partition_servers, full, workers)
        seconds = time.perf_counter() - started
        worker_s = _cpu([worker.pid for worker in workers]) - worker_s
        redis_s = _cpu(server_pids) - redis_s
        for worker in workers:
            worker.kill()
        for partition, batch in zip(partition_servers, full):
            verify(partition.pipe, batch, partition.keys)
    total = jobs * count
    return Drained(count, total / seconds, worker_s / total * 1e6, redis_s / total * 1e6)


def table(rounds: list[list[Drained]]) -> Table:
    """One row per number of partitions, medians."""
    rows: Table = [
        ("partitions, nodes, workers", "jobs/s", "worker CPU µs/job", "Redis CPU µs/job",
         "CPU µs/job, x one partition"),
    ]  # fmt: skip
    first = _cpu_us(rounds, 0)
    for column in range(len(rounds[0])):
        found = [row[column] for row in rounds]
        rows.append(
            (
                f"{found[0].partitions}",
                f"{median([row.jobs_per_s for row in found]):,.0f}",
                f"{median([row.worker_cpu_us for row in found]):.0f}",
                f"{median([row.redis_cpu_us for row in found]):.0f}",
                f"{_cpu_us(rounds, column) / first:.2f}",
            )
        )
    return rows


def growth(rounds: list[list[Drained]]) -> float:
    """CPU time per job, the most expensive number of partitions ÷ one; median of the rounds."""
    return max(_cpu_us(rounds, column) for column in range(len(rounds[0]))) / _cpu_us(rounds, 0)


def section(rounds: list[list[Drained]], load: machine.Load) -> str:
    found = growth(rounds)
    verdict = "flat" if found <= FLAT_WITHIN else "NOT flat"
    result = verdict if load.quiet else "not evaluated: the machine was busy"
    return f"""## {HEADING}

The echo jobs of *Worker drain* in one, two and four partitions (`QUEUE_PARTITIONS`): one server,
then Redis Clusters with one node per partition and as many workers, each of which reads all
partitions and has {SLOTS} slots per partition. {len(rounds)} alternating rounds, medians. All
processes share {load.cpus} cores, which limit the throughput. The CPU time per job must not grow
with the number of nodes: it is at most {found:.2f} times that of one partition
(target: <= {FLAT_WITHIN:g}; {result}). Repeat it with `python -m bench.scaling`.

{as_markdown(table(rounds))}
"""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # run all cleanup
    round_count, jobs, warmup, messages = (
        (1, 500, 100, 500) if options.quick else (5, 6000, 300, 20_000)
    )
    observer = machine.Observer()
    rounds: list[list[Drained]] = []
    few: list[Drained] = []
    for number in range(1, round_count + 1):
        rounds.append([measure(count, max(jobs // count, 100), warmup) for count in COUNTS])
        few.append(measure(1, max(jobs // 2, 100), warmup, FEW_SLOTS))
        for row in (*rounds[-1], few[-1]):
            print(
                f"{number}/{round_count} {row.partitions} partitions: {row.jobs_per_s:,.0f} "
                f"jobs/s, worker {row.worker_cpu_us:.0f} us, Redis {row.redis_cpu_us:.0f} us",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    with private_redis(1000) as redis:
        hint_costs = hints.run(redis, messages)
    load = observer.load()
    print(as_text(table(rounds)), end="\n\n")
    print(f"a hint: {hint_costs}; other processes used {load.busy_share:.0%} of the machine")
    if options.write_docs:
        one = [row[0] for row in rounds]
        keep(
            bus_send_us=hint_costs.bus_send_us,
            bus_hear_us=hint_costs.bus_hear_us,
            hint_us=hint_costs.gateway_us,
            redis_16_us=median([row.redis_cpu_us for row in one]),
            redis_4_us=median([row.redis_cpu_us for row in few]),
            worker_16_us=median([row.worker_cpu_us for row in one]),
            worker_4_us=median([row.worker_cpu_us for row in few]),
        )
        _PAGE.write_text(put(_PAGE.read_text(), HEADING, section(rounds, load)))
        print(f"wrote docs/{_PAGE.name}")
    return 0


def _batch(partitions: Partitions, number: int, count: int, tag: int) -> Batch:
    keys = partitions.keys[number]
    return make_batch(count, tag, keys, lambda job_id: partitions.number(job_id) == number)


def _env(url: str, count: int, number: int, slots_per_partition: int) -> dict[str, str]:
    slots = str(slots_per_partition * count)
    return {
        "REDIS_URL": url, "QUEUE_PARTITIONS": str(count), "MAX_INFLIGHT": slots, "COUNT": slots,
        "CONSUMER": f"bench-{number}", "LOG_LEVEL": "error", "LEASE_MS": "600000",
    }  # fmt: skip


def _fill(partition_servers: list[PartitionServer], batches: list[Batch]) -> None:
    for partition, batch in zip(partition_servers, batches):
        partition.pipe.push(batch.packed)


def _wait(
    partition_servers: list[PartitionServer], batches: list[Batch], workers: list[Program]
) -> None:
    for partition, batch in zip(partition_servers, batches):
        wait_until(
            "a partition to drain",
            lambda partition=partition, batch=batch: is_drained(
                partition.pipe, batch, partition.keys
            ),  # type: ignore[misc]
            while_alive=workers[0],
            timeout_s=600,
            every_s=0.005,
        )


def _cpu(pids: list[int] | set[int]) -> float:
    return sum(map(machine.cpu_seconds, pids))


def _cpu_us(rounds: list[list[Drained]], column: int) -> float:
    return median([row[column].worker_cpu_us + row[column].redis_cpu_us for row in rounds])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the section of docs/benchmarks.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
