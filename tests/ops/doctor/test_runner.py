"""The runner with hanging and failing checks, the report, and its documentation."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions

from sluice.ops.doctor import report
from sluice.ops.doctor.checks import CHECKS
from sluice.ops.doctor.finding import Check, CheckSkipped, Finding, Health, ok
from sluice.ops.doctor.machine import COMMAND_S, TIMED_OUT, Machine, run_command
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.doctor.runner import run_checks
from sluice.ops.redis_target import RedisTarget
from tests.ops.doctor.machines import make_machine

DOCUMENT = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()


def make_check(function: Any, name: str = "test.one", timeout_s: float = 5.0) -> Check:
    return Check(name, "", "", function, timeout_s)


def raising(error: Exception) -> Any:
    def function(machine: Machine) -> Finding:
        raise error

    return function


def test_checks_with_one_or_many_findings(tmp_path: Path) -> None:
    checks = [
        make_check(lambda machine: ok("one")),
        make_check(lambda machine: [ok("two"), ok("three")], "test.many"),
    ]
    found = list(run_checks(make_machine(tmp_path), checks))
    assert [(finding.check, finding.seen) for finding in found] == [
        ("test.one", "one"),
        ("test.many", "two"),
        ("test.many", "three"),
    ]


def test_hanging_check_is_abandoned(tmp_path: Path) -> None:
    release = threading.Event()
    slow: list[str] = []

    def hang(machine: Machine) -> Finding:
        release.wait(60)
        return ok("too late")

    checks = [make_check(hang, "test.slow", 0.05), make_check(lambda machine: ok("next"))]
    found = list(run_checks(make_machine(tmp_path), checks, lambda check: slow.append(check.name)))
    release.set()
    assert [finding.status for finding in found] == [Health.WARN, Health.OK]
    assert slow == ["test.slow"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CheckSkipped("none here"), Health.SKIPPED),
        (exceptions.NoPermissionError("NOPERM"), Health.SKIPPED),
        (exceptions.ResponseError("ERR"), Health.WARN),
        (PermissionError(13, "Permission denied"), Health.WARN),
        (ZeroDivisionError("a fault"), Health.WARN),
        (RecursionError(), Health.WARN),
    ],
)
def test_errors_become_findings(tmp_path: Path, error: Exception, status: Health) -> None:
    [found] = run_checks(make_machine(tmp_path), [make_check(raising(error))])
    assert found.status is status
    assert "Traceback" not in found.seen


def test_lost_redis_is_not_queried_again(tmp_path: Path) -> None:
    class Client:
        def ping(self) -> bool:
            return True

    client: Any = Client()
    redis = RedisServer(RedisTarget("redis://localhost", ""), client)
    machine_under_test = make_machine(tmp_path, redis=redis)
    checks = [
        make_check(lambda machine: ok(str(machine.server.answers))),
        make_check(raising(exceptions.TimeoutError("Timeout reading"))),
        make_check(lambda machine: ok(str(machine.server.answers))),
    ]
    found = list(run_checks(machine_under_test, checks))
    assert [finding.status for finding in found] == [Health.OK, Health.FAIL, Health.SKIPPED]


def test_commands_time_out() -> None:
    assert run_command(("sleep", "60"), 0.05).code == TIMED_OUT
    assert run_command(("no-such-command-here",), COMMAND_S).code == 127
    assert run_command(("echo", "hello"), COMMAND_S) == (0, "hello\n")
    assert run_command(("sh", "-c", "echo oh >&2; exit 3"), COMMAND_S) == (3, "oh\n")


FINDINGS = [
    Finding(Health.OK, "fine", check="a.one"),
    Finding(Health.NOTE, "well", "because", check="a.two"),
    Finding(Health.FAIL, "bad\x1b[31m\n", "why so", "do this", check="b.one"),
    Finding(Health.SKIPPED, "none here", check="c.one"),
    Finding(Health.SKIPPED, "none here", check="c.two"),
    Finding(Health.SKIPPED, "nor here", check="c.three"),
]


def test_report_lines() -> None:
    lines = list(report.report_lines(FINDINGS, color=False, quiet=False))
    indent = " " * 30
    assert lines == [
        "ok      a.one                 fine",
        "note    a.two                 well",
        f"{indent}why: because",
        "fail    b.one                 bad?[31m?",
        f"{indent}why: why so",
        f"{indent}fix: do this",
        "skipped c.*                   none here",
        "skipped c.three               nor here",
    ]
    assert report.summary(FINDINGS) == "1 failure, 1 note, 1 ok, 3 skipped"


def test_quiet_and_coloured_lines() -> None:
    lines = list(report.report_lines(FINDINGS, color=False, quiet=True))
    assert [line.split()[0] for line in lines] == ["fail", "why:", "fix:"]
    [line, *_] = report.report_lines(FINDINGS, color=True, quiet=False)
    assert line.startswith("\x1b[32mok     \x1b[0m a.one")


def test_lines_are_printed_immediately() -> None:
    printed = []

    def slowly() -> Any:
        yield Finding(Health.OK, "first", check="a.one")
        assert printed, "the first line was delayed"
        yield Finding(Health.OK, "second", check="a.two")

    for line in report.report_lines(slowly(), color=False, quiet=False):
        printed.append(line)
    assert len(printed) == 2


def test_json_report() -> None:
    whole = json.loads(report.as_json(FINDINGS, healthy=False, redis=None, url="http://x"))
    assert whole["healthy"] is False
    assert whole["counts"] == {"ok": 1, "note": 1, "warn": 0, "fail": 1, "skipped": 3}
    assert whole["findings"][2] == {
        "check": "b.one",
        "status": "fail",
        "seen": "bad\x1b[31m\n",
        "cause": "why so",
        "fix": "do this",
    }


def test_every_check_has_a_unique_name_and_texts() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", check.name)
        assert len(check.name) <= report.NAME_WIDTH, check.name
        assert check.meaning
        assert check.remedy
    families = [check.family for check in CHECKS]
    assert families == sorted(families, key=families.index)  # families are contiguous


def test_document_lists_exactly_the_checks() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.+) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    documented = {name: (meaning, remedy) for name, meaning, remedy in rows}
    assert documented == {
        check.name: (check.meaning.replace("|", "\\|"), check.remedy.replace("|", "\\|"))
        for check in CHECKS
    }
