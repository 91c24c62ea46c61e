"""The house rules that a machine can check: who imports whom, and where names live."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

from common import scripts
from common.contracts import jobs
from common.contracts.scripts import Operation
from common.images import scripts as image_scripts
from common.workflow import scripts as workflow_scripts

ROOT = Path(__file__).parent.parent
ROOMS = ("common", "gateway", "worker", "client", "ops")
#: Which rooms a room may not know.
FORBIDDEN = {
    "common": {"gateway", "worker", "client", "ops"},
    "gateway": {"worker", "client", "ops"},
    "worker": {"gateway", "client", "ops"},
    "client": {"common", "gateway", "worker"},
    "ops": {"gateway", "worker", "client"},
}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
LUA = sorted((ROOT / "common" / "lua").glob("*.lua"))
#: Shared parts that are none of the core's: their answers and facts are those of who has them.
ONLY_FOR_FRONT_DOORS = set(scripts.FOR_FRONT_DOORS) - {"prelude", "queueing"}
MOST_LINES = 400

CONTRACT_ENUMS: tuple[type[Enum], ...] = (
    jobs.JobField, jobs.QueueField, jobs.EventField, jobs.LeaseField, jobs.Status, jobs.EventType,
    jobs.Step, jobs.DeadField, jobs.DeadReason, jobs.FrameType, jobs.Task,
)  # fmt: skip
CONTRACT_NAMES = {member.value for enum in CONTRACT_ENUMS for member in enum} | {
    jobs.QUEUE_STREAM,
    jobs.WORKER_GROUP,
    jobs.DEAD_LETTER_STREAM,
    jobs.RAW_PAYLOAD,
}
KEY_PREFIXES = ("job:", "jobs:", "idempotency:", "idempotency.", "access:", "rag:", "rag.")
#: Words that are contract names and also something else, with the files where they are that.
ALSO_SOMETHING_ELSE = {
    "message": {"common/logs.py", "common/wire.py", "gateway/openai/chat_answer.py"}
    | {"ops/model/look.py", "worker/model/chunks.py"},  # OpenAI's, too
    "error": {"common/settings.py", "worker/outcome.py"}  # a log level, an outcome
    | {"worker/images/pixels/strictness.py"}  # what becomes of a warning
    | {"ops/model/look.py", "worker/model/chunks.py", "worker/model/sse.py"},  # a model server's
    # Outcomes of an attempt.
    "done": {"worker/outcome.py"},
    "canceled": {"worker/outcome.py"},
    "retry": {"worker/outcome.py", "gateway/openapi_jobs.py"},  # a field of SSE, too
    "data": {
        "gateway/bullmq/models.py",  # a job's, as BullMQ calls it
        "gateway/openapi_jobs.py",
        "gateway/openapi_openai.py",
        "ops/model/look.py",
        "worker/model/chunks.py",
        "worker/model/sse.py",
    },  # likewise; OpenAI's list
    "released": {"worker/outcome.py"},
    "attempts": {"gateway/bullmq/models.py"},  # of a job of BullMQ's
    "payload": {"worker/registry.py"},  # a word in an error message
    "job_id": {"common/logs.py"},  # a context variable
    "created_ts": {"ops/key_text.py"},  # of a key
    "message_id": {"common/audit_queue.py"},  # member of a pending entry, as redis-py names it
    "ts": {"worker/handlers/code_blocks.py"},  # TypeScript
    "tool": {
        "worker/handlers/chat_payload.py",
        "worker/agent/talk.py",
        "gateway/openai/chat_messages.py",
    },  # a role
    "hello": {"gateway/models.py"},  # somebody's text
    # ASGI, JSON Schema and RFC 9457 have such members too.
    "type": {
        "common/host.py",  # a sensor's name
        "gateway/bullmq/models.py",  # of a backoff, as BullMQ calls it
        "common/json_schema.py",
        "common/workflow/memory_first.py",
        "gateway/body.py",
        "gateway/dashboard/polls.py",
        "gateway/openapi_words.py",
        "gateway/edge.py",
        "gateway/guard.py",
        "gateway/lane.py",
        "gateway/lookup.py",
        "gateway/openai/chat_messages.py",
        "gateway/openai/chat_request.py",
        "gateway/openai/checking.py",
        "gateway/openai/streaming.py",
        "gateway/openapi.py",
        "gateway/openapi_guard.py",
        "gateway/openapi_jobs.py",
        "gateway/openapi_rag.py",
        "gateway/openapi_openai.py",
        "gateway/problems.py",
        "gateway/workflow/create_request.py",  # of a source
        "ops/audit.py",  # of a line, as over HTTP
        "ops/doctor/jetson_checks.py",  # a file of the kernel
        "worker/agent/talk.py",
        "worker/handlers/plan_payload.py",
        "worker/model/results.py",
        "worker/tools/tool.py",
    },
    # ASGI, RFC 9457 and the health draft.
    "status": {
        "gateway/edge.py",
        "gateway/openai/streaming.py",
        "gateway/problems.py",
        "gateway/status_check.py",
        "ops/model/command.py",  # a command
    },
    "code": {
        "gateway/guard.py",
        "gateway/problems.py",
        "gateway/metrics_names.py",
        "worker/handlers/code.py",  # a program
        "worker/model/chunks.py",  # of an error
        "worker/workflows/memory_first/entities.py",  # a kind of term
    },
    "reason": {"gateway/metrics_names.py"},  # a label
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """A module's syntax tree. A collection in the middle may print the traceback of somebody's
    forgotten task, which parses too, and CPython 3.11 takes that for an error of ours."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string constant, except docstrings and the names of attributes."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            skipped.update(id(part) for part in ast.walk(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in skipped:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode(errors="replace")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_know_only_whom_they_may(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    known = {name.split(".")[0] for name in imports(tree_of(path))}
    assert not known & FORBIDDEN[room]
    assert "tests" not in known


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_contract_name_outside_the_contracts(path: Path) -> None:
    name = name_of(path)
    if name.startswith(("common/contracts/", "client/")):  # a client knows HTTP, not Redis
        return
    found = [
        f"{name}:{line}: {value!r}"
        for line, value in strings(tree_of(path))
        if (value in CONTRACT_NAMES and name not in ALSO_SOMETHING_ELSE.get(value, ()))
        or value.startswith(KEY_PREFIXES)
    ]
    assert found == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_say_what_they_are_and_stay_small(path: Path) -> None:
    source = path.read_text()
    assert ast.get_docstring(tree_of(path))
    assert len(source.splitlines()) < MOST_LINES


def lua_code(path: Path) -> str:
    return re.sub(r"--.*", "", path.read_text())


@pytest.mark.parametrize("path", LUA, ids=name_of)
def test_lua_gets_its_names_from_the_contracts(path: Path) -> None:
    quoted = re.findall(r"""'([^'\n]*)'|"([^"\n]*)\"""", lua_code(path))
    written = {single or double for single, double in quoted}
    assert not written & (CONTRACT_NAMES - {"message"})
    assert not [word for word in written if word.startswith(KEY_PREFIXES)]


@pytest.mark.parametrize("operation", list(Operation), ids=lambda operation: operation.value)
def test_every_operation_is_headed_by_its_keys_arguments_and_answers(operation: Operation) -> None:
    source = (ROOT / "common" / "lua" / f"{operation.value}.lua").read_text()
    header = source[: re.search(r"^[^-\n]", source, re.MULTILINE).start()]  # type: ignore[union-attr]
    assert header.startswith(f"-- {operation.name}: ")
    assert re.search(r"^-- keys\s+(1 |none)", header, re.MULTILINE)
    assert re.search(r"^-- answers$", header, re.MULTILINE)
    takes_arguments = re.search(r"ARGV|args", re.sub(r"--.*", "", source)) is not None
    assert takes_arguments == bool(re.search(r"^-- args\s+1 ", header, re.MULTILINE))
    # Each answer that the code gives is explained, and none that it does not.
    given = {word.lower() for word in re.findall(r"\$ANSWER_([A-Z]+)", lua_code_of(source))}
    _, _, explained = header.partition("-- answers")
    described = set(re.findall(r"^--   ([a-z]+)(?:,| {2})", explained, re.MULTILINE))
    assert given == described


def lua_code_of(source: str) -> str:
    return re.sub(r"--.*", "", source)


def test_each_operation_has_a_file_and_each_file_a_use() -> None:
    assert {path.stem for path in LUA} == {
        "prelude",
        "queueing",
        "dispatch",
        *scripts.FOR_FRONT_DOORS,
        *(operation.value for operation in Operation),
    }


def test_every_name_in_lua_resolves() -> None:
    core = scripts.core_names()
    front_doors = (workflow_scripts.workflow_names(), image_scripts.image_names())
    for path in LUA:
        for names in front_doors if path.stem in ONLY_FOR_FRONT_DOORS else (core,):
            for name in re.findall(r"\$([A-Z_]+)", path.read_text()):
                if name != "NAME":
                    assert name in names, f"{path.name}: ${name}"
    assert not re.search(r"\$[A-Z]", lua_code_of(scripts.SOURCE))
    assert scripts.render() == scripts.SOURCE


def test_contract_values_need_no_quoting_in_lua() -> None:
    for name, literal in scripts.core_names().items():
        assert re.fullmatch(r"'[\w.:]+'|\d+", literal), name


def test_the_contract_is_what_the_seeds_say() -> None:
    assert [field.value for field in jobs.JobField] == [
        "job_id", "task", "payload", "status", "created_ts", "updated_ts", "ttl_s", "result",
        "error",
    ]  # fmt: skip
    assert [field.value for field in jobs.QueueField] == ["job_id", "task", "payload"]
    assert [field.value for field in jobs.EventField] == ["type", "ts", "step", "data"]
    assert [task.value for task in jobs.Task] == ["chat", "plan", "code", "tool", "rag", "embed"]
    statuses = ["queued", "running", "done", "error", "canceled"]
    assert [status.value for status in jobs.Status] == statuses
    assert set(jobs.TERMINAL) == {"done", "error", "canceled"}
    keys = jobs.JobKeys()
    assert (keys.queue, jobs.WORKER_GROUP) == ("jobs:stream", "workers")
    assert (keys.job("x"), keys.events("x")) == ("job:x", "job:x:events")
    assert keys.idempotency("x") == "idempotency:x"


def test_the_lock_file_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host", lock)
    pins = re.findall(r"^([A-Za-z0-9_.\[\]-]+)==\S+(.*)$", lock, re.MULTILINE)
    assert len(pins) > 20
    assert lock.count("--hash=sha256:") >= len(pins)
