"""Partitions and the projection: conclusions, output, and one small real drain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import measured, simulation
from bench.jobs import make_batch
from bench.machine import Load
from bench.measured import Measured
from bench.scaling import Drained, growth, measure, section
from bench.simulation import CURRENT, NODES, SEPARATED, Fleet, project
from sluice.common.contracts.jobs import JobKeys
from sluice.common.redis.partitions import Partitions

COST = Measured(
    redis_enqueue_us=40,
    gateway_us=300,
    redis_16_us=60,
    redis_4_us=120,
    worker_16_us=70,
    worker_4_us=130,
    bus_send_us=1,
    bus_hear_us=2,
    hint_us=3,
)
ROUNDS = [
    [Drained(1, 5000, 60, 40), Drained(2, 5000, 66, 44), Drained(4, 5000, 60, 60)],
    [Drained(1, 5000, 62, 38), Drained(2, 5000, 60, 50), Drained(4, 5000, 70, 50)],
]


# -- measured --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy_share", "text"), [(0.0, "; flat)"), (0.5, "not evaluated: the machine was busy")]
)
def test_the_section_is_evaluated_on_a_quiet_machine_only(busy_share: float, text: str) -> None:
    assert growth(ROUNDS) == pytest.approx(1.2)  # of the most expensive number of partitions
    written = section(ROUNDS, Load(2, 0.0, busy_share))
    assert text in written
    assert "| 4 | 5,000 | 65 | 55 | 1.20 |" in written


def test_jobs_of_a_batch_belong_to_their_partition() -> None:
    partitions = Partitions.create(JobKeys(), 4)
    batch = make_batch(20, 1, partitions.keys[3], lambda each: partitions.number(each) == 3)
    assert {partitions.number(job_id) for job_id in batch.job_ids} == {3}
    assert len(batch.job_ids) == 20
    assert b"{3}:jobs:stream" in batch.packed


@pytest.mark.process
def test_a_drain_of_one_partition() -> None:
    row = measure(1, jobs=40, warmup=20)
    assert row.partitions == 1
    assert min(row.jobs_per_s, row.worker_cpu_us, row.redis_cpu_us) > 0


# -- kept ------------------------------------------------------------------------------------------


def test_runs_keep_the_results_of_other_runs(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    with pytest.raises(OSError):
        measured.load(path)
    measured.keep(path, gateway_us=300.12345)
    assert measured.keep(path, hint_us=3.0).gateway_us == 300.123
    assert measured.load(path) == Measured(gateway_us=300.123, hint_us=3.0)


# -- projected -------------------------------------------------------------------------------------


def test_one_node_matches_the_measurement() -> None:
    """Small batches are more expensive, and Redis is the limit with many cores."""
    alone = project(1, COST, CURRENT)
    assert alone.redis_us == 40 + 60
    assert alone.others_us == pytest.approx(300 + 70 + 2 / 16 * 3)
    assert alone.jobs_per_s == pytest.approx(3 * 0.8e6 / alone.others_us)
    assert alone.limit == "gateways and workers"
    assert project(1, COST, Fleet(cores=64)).limit == "Redis"
    few = project(1, COST, replace(CURRENT, slots=4))
    assert few.redis_us == 40 + 120
    assert few.others_us == pytest.approx(300 + 130 + 2 / 4 * 3)


def test_separated_throughput_grows_with_the_nodes() -> None:
    one = project(1, COST, SEPARATED)
    for nodes in NODES:
        found = project(nodes, COST, SEPARATED)
        assert found.jobs_per_s == pytest.approx(nodes * one.jobs_per_s)
        assert found.cpu_us == one.cpu_us


def test_hints_to_all_nodes_limit_growth() -> None:
    partitioned = replace(CURRENT, reads_all=False)
    per_node = [project(nodes, COST, partitioned).jobs_per_s / nodes for nodes in NODES]
    assert per_node == sorted(per_node, reverse=True)
    assert per_node[-1] < per_node[0]


def test_the_projection_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "_DOCS", tmp_path)
    (tmp_path / "benchmarks.md").write_text("# Benchmarks\n")
    page, picture = simulation.write(COST)
    ElementTree.fromstring(picture.read_text())
    text = page.read_text()
    assert text.startswith("# Benchmarks\n")
    assert text.count("| 100 |") == 1
    simulation.write(COST)
    assert page.read_text() == text
