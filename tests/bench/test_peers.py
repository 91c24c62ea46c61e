"""The comparison with other job queues: parsing, statistics, goals and output; nothing is timed."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import measured, sections
from bench.machine import Load
from bench.peers import __main__ as command
from bench.peers import docs, plots, releases, report, talk
from bench.peers.field import BY_KEY, FIELD, NODE, SLUICE, SLUICE_HTTP
from bench.peers.idle import measure_idle
from bench.peers.measure import Effort, Failed, Round, measure
from bench.peers.results import FieldResults, percentile
from bench.report import as_text
from bench.results import Verdict
from bench.server import BenchRedis, private_redis

QUIET, BUSY = Load(2, 0.1, 0.01), Load(2, 9.0, 0.9)
ROUND = Round(
    jobs=100,
    drain_per_s=1000.0,
    enqueue_per_s=500.0,
    latencies_ms=[2.0, 3.0, 4.0],
    worker_cpu_us=100.0,
    redis_cpu_us=50.0,
    enqueue_commands=5.0,
    work_commands=10.0,
    enqueue_bytes=300.0,
    work_bytes=900.0,
    redis_memory_bytes=2900.0,
    drained_mb=40.0,
    processes=1,
    enqueue_redis_us=30.0,
    gateway_us=0.0,
)


def rounds(*per_s: float, ms: float = 3.0) -> list[Round]:
    return [replace(ROUND, drain_per_s=each, latencies_ms=[ms]) for each in per_s]


def found(load: Load = QUIET, **others: Any) -> FieldResults:
    measured = {
        SLUICE: rounds(10_000, 12_000, 11_000, ms=1.0),
        SLUICE_HTTP: rounds(9_000, 9_000, 9_000, ms=4.0),
        NODE: rounds(5_000, 6_000, 5_500, ms=2.0),
        "saq": rounds(2_000, 1_000, 1_500),
        "dramatiq": rounds(1_000, 2_000, 1_500),
    }
    values: dict[str, Any] = {
        "rounds": measured, "failures": {}, "idle_mb": {SLUICE: 39.0, "saq": 35.0},
    }  # fmt: skip
    return FieldResults("full", "7.0.15", QUIET, load, versions={"saq": "1.2"}, **values | others)


# -- statistics ------------------------------------------------------------------------------------


def test_ratios_are_of_the_same_round() -> None:
    assert percentile([7.0], 95) == 7.0
    assert percentile([float(number) for number in range(101)], 95) == 95.0
    results = found()
    # Against the better of both in each round: 10,000/2,000, 12,000/2,000, 11,000/1,500.
    assert results.drain_ratio("saq", "dramatiq") == 6.0
    assert results.drain_ratio(NODE) == 2.0
    assert results.latency_ratio(SLUICE) == 0.5
    assert results.latency_ratio(SLUICE_HTTP) == 2.0
    assert results.best_python() in ("saq", "dramatiq")


def test_times_are_evaluated_on_a_quiet_machine_only() -> None:
    verdicts = {goal.name: goal.verdict for goal in found().goals()}
    assert verdicts == {
        "drain, Sluice / best Python peer": Verdict.MET,
        "drain, Sluice / BullMQ on Node": Verdict.MET,
        "Redis bytes per finished job": Verdict.MET,
        "e2e p50, Sluice / fastest peer": Verdict.MET,
        "e2e p50, Sluice over HTTP / fastest peer": Verdict.MISSED,
        "idle worker, MB": Verdict.MET,
    }
    on_busy = {goal.name for goal in found(BUSY).goals() if goal.verdict is Verdict.NOT_EVALUATED}
    assert on_busy == {name for name in verdicts if name.startswith(("drain", "e2e p50"))}


def test_a_failed_system_is_listed_and_not_compared() -> None:
    results = found(failures={NODE: "ended early,\nexit code 1"})
    assert NODE not in results.finished
    assert not any("Node" in goal.name for goal in results.goals())
    written = report.section(results)
    assert "**BullMQ, Node failed** and has no numbers here: ended early, exit code 1" in written


# -- what is read and written ----------------------------------------------------------------------


def test_every_system_has_a_release_with_hashes() -> None:
    known = releases.releases()
    assert set(known) == set(BY_KEY)
    assert all(known.values())
    for lock in (Path(releases.__file__).with_name("requirements")).glob("*.lock"):
        text = lock.read_text()
        assert "://" not in text
        assert releases.pinned(text)
        assert text.count("==") <= text.count("--hash=sha256:")
    two = "a-b==1.2 \\\n  --hash=sha256:0\nc==1 ; python_version < '3.11' \\\n  --hash=sha256:1\n"
    assert releases.pinned(two) == {"a-b": "1.2", "c": "1"}


def test_tables_and_charts() -> None:
    text = "\n".join(as_text(table) for table in report.tables(found()))
    for key in (SLUICE, SLUICE_HTTP, NODE, "saq", "dramatiq"):
        assert BY_KEY[key].title in text
    ElementTree.fromstring(plots.draw(found()))
    ElementTree.fromstring(plots.draw(found(BUSY, idle_mb={})))


def test_a_section_replaces_its_older_version() -> None:
    page = "# T\n\nfirst\n\n## A\n\nold\n\n## B\n\nstays\n"
    again = sections.put(page, "A", "## A\n\nnew\n")
    assert again == "# T\n\nfirst\n\n## A\n\nnew\n\n## B\n\nstays\n"
    assert sections.put(again, "C", "## C\n\nmore") == again + "\n## C\n\nmore\n"
    assert sections.find(page, "B") == "## B\n\nstays\n"
    assert sections.find(page, "C") == ""


def test_writing_the_page_twice_gives_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "_DOCS", tmp_path)
    monkeypatch.setattr(docs, "_COSTS", tmp_path / "measured.json")
    (tmp_path / "benchmarks.md").write_text("# Benchmarks\n\n## Images\n\nstay\n")
    docs.write(found())
    once = (tmp_path / "benchmarks.md").read_text()
    docs.write(found())
    assert (tmp_path / "benchmarks.md").read_text() == once
    assert "## Images\n\nstay\n" in once
    assert f"## {report.HEADING}" in once
    assert measured.load(tmp_path / "measured.json").redis_enqueue_us == 30.0


def test_results_are_saved_as_json(tmp_path: Path) -> None:
    found().save(tmp_path / "results.json")
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["rounds"][SLUICE][0]["drain_per_s"] == 10_000
    assert len(kept["goals"]) == 6


def test_systems_are_chosen_by_name() -> None:
    assert command._chosen("saq,rq") == [BY_KEY["saq"], BY_KEY["rq"]]
    assert command._chosen("") == FIELD
    with pytest.raises(SystemExit, match="unknown system 'none'"):
        command._chosen("none")


# -- clients ---------------------------------------------------------------------------------------


class Echo:
    """A client without a system behind it."""

    def __init__(self, answer: Any = talk.PAYLOAD) -> None:
        self._answer = answer

    def submit(self) -> int:
        return 1

    def result(self, job: int) -> Any:
        return self._answer


class AsyncEcho(Echo):
    async def submit(self) -> int:  # type: ignore[override]
        return 1

    async def result(self, job: int) -> Any:
        return self._answer


REQUESTS = (
    '{"do": "latency", "count": 2}\n{"do": "enqueue", "count": 40}\n{"do": "check"}\n'
    '{"do": "check"}\n'
)


@pytest.mark.parametrize("is_async", [False, True])
async def test_clients_answer_line_by_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_async: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(REQUESTS))
    if is_async:
        await talk.serve(AsyncEcho())
    else:
        talk.serve_plain(Echo())
    lines = capsys.readouterr().out.splitlines()
    ready, latency, enqueued, checked, again = map(json.loads, lines)
    assert ready == {"ready": True}
    assert len(latency["ms"]) == 2
    assert enqueued["seconds"] >= 0
    assert (checked, again) == ({"right": 40}, {"right": 0})
    assert len(json.dumps(talk.PAYLOAD, separators=(",", ":"))) == 200


def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(REQUESTS))
    with pytest.raises(ValueError, match="unexpected result"):
        talk.serve_plain(Echo("something else"))


# -- a whole round ---------------------------------------------------------------------------------


@pytest.fixture
def redis() -> Any:
    with private_redis(200) as server:
        yield server


@pytest.mark.slow("measures a system")
@pytest.mark.process
@pytest.mark.parametrize("key", [SLUICE, SLUICE_HTTP])
def test_a_round_of_sluice(redis: BenchRedis, key: str) -> None:
    row = measure(redis, BY_KEY[key], Effort(jobs=40, warmup=10, latencies=3, cap_s=120))
    assert row.jobs == 40
    assert len(row.latencies_ms) == 3
    assert min(row.drain_per_s, row.enqueue_per_s, row.worker_cpu_us, row.redis_memory_bytes) > 0
    assert (row.gateway_us > 0) == (key == SLUICE_HTTP)
    assert row.work_commands > 1


@pytest.mark.slow("waits for a system to start")
@pytest.mark.process
def test_a_system_that_cannot_start_fails_with_a_reason(redis: BenchRedis) -> None:
    broken = replace(BY_KEY[SLUICE], worker=(sys.executable, "-c", "raise SystemExit('no')"))
    with pytest.raises(Failed):
        measure(redis, broken, Effort(jobs=1, warmup=1, latencies=1, cap_s=3))


@pytest.mark.slow("measures a system")
@pytest.mark.process
def test_memory_of_idle_workers_is_measured(redis: BenchRedis) -> None:
    idle = replace(BY_KEY[SLUICE], worker=(sys.executable, "-c", "import time; time.sleep(60)"))
    assert measure_idle(redis, [idle], after_s=0.0)[SLUICE] > 0
