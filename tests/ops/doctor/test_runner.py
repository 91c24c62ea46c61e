"""The examination: nothing hangs it, nothing breaks it; and how its report looks."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions

from ops.doctor import report
from ops.doctor.checks import CHECKS
from ops.doctor.finding import Check, CheckSkipped, Finding, Health, fail, note, ok, warn
from ops.doctor.machine import COMMAND_S, TIMED_OUT, Machine, run_command
from ops.doctor.redis_server import RedisServer
from ops.doctor.runner import run_checks
from ops.redis_target import RedisTarget
from tests.ops.doctor.machines import make_machine

DOCUMENT = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()


def check_that(function: Any, name: str = "test.one", timeout_s: float = 5.0) -> Check:
    return Check(name, "", "", function, timeout_s)


def raising(error: Exception) -> Any:
    def function(machine: Machine) -> Finding:
        raise error

    return function


def test_one_finding_or_many(tmp_path: Path) -> None:
    checks = [
        check_that(lambda machine: ok("one")),
        check_that(lambda machine: [ok("two"), ok("three")], "test.many"),
    ]
    found = list(run_checks(make_machine(tmp_path), checks))
    assert [(finding.check, finding.seen) for finding in found] == [
        ("test.one", "one"),
        ("test.many", "two"),
        ("test.many", "three"),
    ]


def test_a_check_that_hangs_is_left_behind(tmp_path: Path) -> None:
    release = threading.Event()
    slow: list[str] = []

    def hang(machine: Machine) -> Finding:
        release.wait(60)
        return ok("too late")

    checks = [check_that(hang, "test.slow", 0.05), check_that(lambda machine: ok("next"))]
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
def test_whatever_goes_wrong_is_a_finding(tmp_path: Path, error: Exception, status: Health) -> None:
    [found] = run_checks(make_machine(tmp_path), [check_that(raising(error))])
    assert found.status is status
    assert "Traceback" not in found.seen


def test_a_redis_that_goes_away_is_not_waited_for_again(tmp_path: Path) -> None:
    class Client:
        def ping(self) -> bool:
            return True

    client: Any = Client()
    redis = RedisServer(RedisTarget("redis://localhost", ""), client)
    subject = make_machine(tmp_path, redis=redis)
    checks = [
        check_that(lambda machine: ok(str(machine.server.answers))),
        check_that(raising(exceptions.TimeoutError("Timeout reading"))),
        check_that(lambda machine: ok(str(machine.server.answers))),
    ]
    found = list(run_checks(subject, checks))
    assert [finding.status for finding in found] == [Health.OK, Health.FAIL, Health.SKIPPED]


def test_commands_have_a_limit() -> None:
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


def test_lines_for_people() -> None:
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


def test_quiet_tells_only_what_is_wrong() -> None:
    lines = list(report.report_lines(FINDINGS, color=False, quiet=True))
    assert [line.split()[0] for line in lines] == ["fail", "why:", "fix:"]


def test_colours() -> None:
    [line, *_] = report.report_lines(FINDINGS, color=True, quiet=False)
    assert line.startswith("\x1b[32mok     \x1b[0m a.one")


def test_lines_come_as_soon_as_they_are_known() -> None:
    told = []

    def slowly() -> Any:
        yield Finding(Health.OK, "first", check="a.one")
        assert told, "the first line was held back"
        yield Finding(Health.OK, "second", check="a.two")

    for line in report.report_lines(slowly(), color=False, quiet=False):
        told.append(line)
    assert len(told) == 2


def test_json_for_programs() -> None:
    text = report.as_json(FINDINGS, healthy=False, redis=None, url="http://x")
    whole = json.loads(text)
    assert whole["healthy"] is False
    assert whole["counts"] == {"ok": 1, "note": 1, "warn": 0, "fail": 1, "skipped": 3}
    assert whole["findings"][2] == {
        "check": "b.one",
        "status": "fail",
        "seen": "bad\x1b[31m\n",
        "cause": "why so",
        "fix": "do this",
    }


def test_every_check_has_a_name_of_its_own_and_words() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", check.name)
        assert len(check.name) <= report.NAME_WIDTH, check.name
        assert check.meaning
        assert check.remedy
    families = [check.family for check in CHECKS]
    assert families == sorted(families, key=families.index)  # each stays together


def test_the_document_has_every_check_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.+) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    said = {name: (meaning, remedy) for name, meaning, remedy in rows}
    assert said == {
        check.name: (check.meaning.replace("|", "\\|"), check.remedy.replace("|", "\\|"))
        for check in CHECKS
    }


def test_what_is_wrong_needs_a_cause_and_a_fix() -> None:
    assert note("x").fix == ""
    for make in (warn, fail):
        with pytest.raises(TypeError):
            make("x")  # type: ignore[call-arg]
