"""Rules of the code base that a test can check: imports, layout, contract names."""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from sluice.common import contracts
from sluice.common.contracts import jobs, values_of
from sluice.common.contracts.queue import Operation
from sluice.common.features.images import scripts as image_scripts
from sluice.common.features.workflows import scripts as workflow_scripts
from sluice.common.jobs import scripts

ROOT = Path(__file__).parent.parent
PACKAGES = ("common", "gateway", "worker", "sluice", "ops")
#: Packages that a package must not import.
FORBIDDEN = {
    "common": {"gateway", "worker", "sluice", "ops"},
    "gateway": {"worker", "sluice", "ops"},
    "worker": {"gateway", "sluice", "ops"},
    "sluice": {"common", "gateway", "worker"},
    "ops": {"gateway", "worker", "sluice"},
}
#: Top-level folders that are subpackages of `sluice`, through links in its folder.
LINKED = ("common", "gateway", "worker", "ops")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LUA = sorted((ROOT / "common" / "jobs" / "lua").rglob("*.lua"))
#: Shared Lua parts of features: their answers and facts belong to the scripts that include them.
FEATURE_LUA_PARTS = set(scripts.JOB_CREATION_PARTS) - {"prelude", "queueing"}
MAX_LINES = 450
#: Files and directories per directory, without `__init__.py`.
MAX_ENTRIES = 14

CONTRACT_ENUMS: tuple[type, ...] = (
    jobs.JobField, jobs.QueueField, jobs.EventField, jobs.LeaseField, jobs.Status, jobs.EventType,
    jobs.Step, jobs.DeadLetterField, jobs.DeadReason, jobs.FrameType, jobs.Task,
)  # fmt: skip
CONTRACT_NAMES = {value for names in CONTRACT_ENUMS for value in values_of(names)} | {
    jobs.QUEUE_STREAM,
    jobs.WORKER_GROUP,
    jobs.DEAD_LETTER_STREAM,
    jobs.RAW_PAYLOAD,
}
KEY_PREFIXES = ("job:", "jobs:", "idempotency:", "idempotency.", "access:", "rag:", "rag.")
#: Contract names that are also used with another meaning, with the files that do so.
OTHER_MEANINGS = {
    "result": {"gateway/observability/status/status.py"},  # a counted noun
    "token": {
        "worker/features/model/output_parsing.py",  # likewise
        "gateway/http/headers.py",  # a query parameter
    },
    "message": {
        "worker/queue/recovery.py",  # likewise
        "common/observability/logs.py",
        "common/redis/pipelined.py",
        "gateway/features/openai/chat/response.py",
    }
    | {"ops/model/probe.py", "worker/features/model/wire/chunks.py"},  # also of the OpenAI API
    "error": {"common/settings/base.py", "worker/execution/outcome.py"}  # a log level, an outcome
    | {"worker/features/images/pixels/decode.py"}  # the action for a warning
    | {
        "ops/model/probe.py",
        "worker/features/model/wire/chunks.py",
    },  # of a model server
    # Outcomes of an attempt.
    "done": {"worker/execution/outcome.py"},
    "canceled": {"worker/execution/outcome.py"},
    "retry": {"worker/execution/outcome.py", "gateway/jobs/openapi.py"},  # also a field of SSE
    "data": {
        "gateway/features/bullmq/models.py",  # of a BullMQ job
        "gateway/jobs/openapi.py",
        "gateway/features/openai/openapi.py",
        "ops/model/probe.py",
        "worker/features/model/wire/chunks.py",
    },  # likewise; a list of the OpenAI API
    "released": {"worker/execution/outcome.py"},
    "attempts": {"gateway/features/bullmq/models.py"},  # of a BullMQ job
    "payload": {"worker/registry.py"},  # part of an error message
    "job_id": {"common/observability/logs.py"},  # a context variable
    "created_ts": {"ops/keys.py"},  # of an API key
    "message_id": {"common/jobs/audit/readers.py"},  # a member of a pending entry in redis-py
    "ts": {"worker/handlers/code.py"},  # TypeScript
    "tool": {
        "worker/handlers/chat_payload.py",
        "worker/features/agent/messages.py",
        "gateway/features/openai/chat/request.py",
    },  # a role
    "hello": {"gateway/jobs/models.py"},  # an example text
    "workers": {"gateway/http/openapi/tags.py", "gateway/observability/workers.py"},  # a tag
    # Also members in ASGI, JSON Schema and RFC 9457.
    "type": {
        "common/process/host.py",  # the name of a sensor
        "gateway/features/bullmq/models.py",  # of a backoff in BullMQ
        "common/json_schema.py",
        "common/features/workflows/memory_first.py",
        "gateway/http/body.py",
        "gateway/dashboard/poll_cache.py",
        "gateway/http/openapi/docs_page.py",
        "gateway/http/middleware.py",
        "gateway/auth/middleware.py",
        "gateway/auth/read_tokens.py",
        "gateway/http/fast_path.py",
        "gateway/jobs/lookup.py",
        "gateway/features/openai/chat/request.py",
        "gateway/features/openai/validation.py",
        "gateway/features/openai/chat/stream.py",
        "gateway/http/headers.py",
        "gateway/http/routing.py",
        "gateway/http/openapi/common_responses.py",
        "gateway/http/openapi/schema.py",
        "gateway/jobs/openapi.py",
        "gateway/features/openai/openapi.py",
        "gateway/http/problems.py",
        "gateway/features/workflows/models/requests.py",  # of a source
        "ops/audit.py",  # of a line, as over HTTP
        "ops/doctor/checks/jetson.py",  # a file of the kernel
        "worker/features/agent/messages.py",
        "worker/handlers/plan.py",
        "worker/features/model/token_events.py",
        "worker/features/tools/tool.py",
    },
    # ASGI, RFC 9457 and the health draft.
    "status": {
        "gateway/http/middleware.py",
        "gateway/features/openai/chat/stream.py",
        "gateway/http/problems.py",
        "gateway/observability/status/checks.py",
        "ops/model/command.py",  # a command
    },
    "code": {
        "gateway/auth/middleware.py",
        "gateway/http/problems.py",
        "gateway/observability/metrics/gateway.py",
        "worker/handlers/code.py",  # a program
        "worker/features/model/wire/chunks.py",  # of an error
        "worker/features/workflows/memory_first/text/entities.py",  # a kind of term
    },
    "reason": {"gateway/observability/metrics/gateway.py"},  # a label
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    """Parses a module. Nothing is kept: all trees together take 100 MB.

    Garbage collection is off: it may print the traceback of another test's task, which also parses
    files, and CPython 3.11 reports that as an error here.
    """
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
    """Every string constant, except docstrings and attribute names."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__slots__":
            skipped.update(id(part) for part in ast.walk(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in skipped:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode(errors="replace")


def test_packages_import_only_allowed_packages() -> None:
    found = []
    for path in MODULES:
        known = {_package_of(name) for name in imports(tree_of(path))}
        forbidden = known & (FORBIDDEN[path.relative_to(ROOT).parts[0]] | {"tests", *OUTSIDE})
        found += [f"{name_of(path)} imports {name}" for name in sorted(forbidden)]
    assert found == []


def _package_of(name: str) -> str:
    """Package of a module: `common` for `sluice.common.aio`, `sluice` for `sluice.errors`."""
    first, second, *_ = *name.split("."), "", ""
    if first == "sluice" and second in LINKED:
        return second
    # Without the prefix, a module would be imported a second time under another name.
    return f"{first} without the prefix `sluice.`" if first in LINKED else first


#: Forbidden everywhere: the names of the folders without `sluice.`.
OUTSIDE = {f"{name} without the prefix `sluice.`" for name in LINKED}


def test_links_lead_to_the_top_level_folders() -> None:
    links = {
        path.name: path.readlink() for path in (ROOT / "sluice").iterdir() if path.is_symlink()
    }
    assert links == {name: Path("..", name) for name in LINKED}


def test_directories_have_few_entries() -> None:
    directories = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*")}
    full = {
        name_of(directory): len(entries)
        for directory in directories
        if "vendor" not in directory.parts
        and "__pycache__" not in directory.parts
        and len(entries := _entries(directory)) > MAX_ENTRIES
    }
    assert full == {}


def _entries(directory: Path) -> list[str]:
    left_out = {"__init__.py", "__pycache__", "py.typed"}
    return [
        path.name
        for path in directory.iterdir()
        if path.name not in left_out and not path.is_symlink()
    ]


def test_no_import_cycles() -> None:
    names = {_module_of(path): path for path in MODULES}
    graph = {name: _top_level_imports(path) & set(names) for name, path in names.items()}
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name in finished:
            return
        for imported in graph[name]:
            visit(imported, (*path, name))
        finished.add(name)

    for name in graph:
        visit(name, ())


def _module_of(path: Path) -> str:
    name = name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"sluice.{name}" if name.split(".")[0] in LINKED else name


def _top_level_imports(path: Path) -> set[str]:
    """Modules that are imported at import time, without those for type checking only."""
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found - {_module_of(path)}


#: HTTP problem codes; several APIs may use the same code.
PROBLEM_CODES = {"WorkflowError", "ImageErrorKind"}
#: Contract names of features that are also JSON members of an HTTP API, parameters or names of
#: another system, with the files that use them so.
OTHER_FEATURE_MEANINGS = {
    "key_id": ("gateway/auth/", "ops/keys.py"),
    "media_type": ("gateway/features/rag/", "worker/features/workflows/memory_first/sources/"),
    "rate_per_min": ("common/access/record.py", "gateway/auth/", "ops/keys.py"),
    "max_jobs": ("common/access/record.py", "gateway/auth/", "ops/keys.py"),
    "created_ms": ("common/access/record.py",),  # attributes of a record
    "expires_ms": ("common/access/record.py",),
    "dry_run": ("gateway/admin/dlq/", "worker/features/workflows/memory_first/steps/apply.py"),
    "undo_token": ("gateway/features/workflows/", "worker/features/workflows/memory_first/"),
    "stream_bytes": ("common/jobs/queue_stats.py",),  # attributes of a statistics object
    "idle_ms": ("common/jobs/queue_stats.py",),
    "oldest_ms": ("common/jobs/queue_stats.py",),
    "sluice_": ("common/observability/logs.py", "gateway/auth/"),
    "proposal_id": ("gateway/features/workflows/",),
    "webhook_url": ("gateway/features/workflows/",),
    "prompt_tokens": ("worker/features/model/",),  # a name of the OpenAI API
    "completion_tokens": ("worker/features/model/",),
    "request_id": ("common/observability/logs.py",),  # a context variable
    "dead_letter_id": ("gateway/admin/dlq/",),
    "model_unavailable": ("gateway/admin/dlq/",),  # an example
    "key.create": ("gateway/auth/",),  # an example
    "grace_s": ("gateway/auth/",),
    "since_ms": ("gateway/observability/history/",),
    "until_ms": ("gateway/observability/history/",),
    "content_type": ("gateway/features/images/models.py",),
    "term_alias": ("gateway/features/rag/",),  # an example
    "idempotency_key": ("gateway/features/workflows/",),
    "step.completed": ("gateway/features/workflows/",),  # an example
    "auto_advance": ("gateway/features/workflows/",),
    "memory_first_v2": ("gateway/features/workflows/",),  # an example
    "end_to_end": ("worker/monitoring/counters.py",),  # attributes
    "queue_wait": ("worker/monitoring/counters.py",),
    "timeout_s": ("worker/handlers/tool.py",),
    "out_of_memory": ("worker/execution/process_pool/errors.py",),
}


def _feature_names() -> set[str]:
    """All contract names with more than one word, of all features."""
    found: set[str] = set()
    for info in pkgutil.walk_packages(contracts.__path__, "sluice.common.contracts."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, str) and name.isupper():
                found.add(value)
            elif (
                isinstance(value, type)
                and value.__module__ == info.name
                and name not in PROBLEM_CODES
            ):
                found.update(word for word in values_of(value) if isinstance(word, str))
    return {word for word in found if re.search(r"[._:]", word)} - CONTRACT_NAMES


def _other_meaning(name: str, value: str) -> bool:
    """True if a string in a file has another meaning than the contract name."""
    if value in CONTRACT_NAMES:
        return name in OTHER_MEANINGS.get(value, ())
    return name.startswith(OTHER_FEATURE_MEANINGS.get(value, ("-",)))


def test_no_contract_name_outside_the_contracts() -> None:
    known = CONTRACT_NAMES | _feature_names()
    found = [
        f"{name}:{line}: {value!r}"
        for path in MODULES
        # The client knows HTTP, not Redis.
        if not (name := name_of(path)).startswith(("common/contracts/", "sluice/"))
        for line, value in strings(tree_of(path))
        if (value in known and not _other_meaning(name, value)) or value.startswith(KEY_PREFIXES)
    ]
    assert found == []


def test_modules_have_a_docstring_and_stay_small() -> None:
    undocumented = [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))]
    assert undocumented == []
    lines = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: count for name, count in lines.items() if count >= MAX_LINES} == {}


def lua_code(source: str) -> str:
    return re.sub(r"--.*", "", source)


def test_lua_gets_its_names_from_the_contracts() -> None:
    found = []
    for path in LUA:
        quoted = re.findall(r"""'([^'\n]*)'|"([^"\n]*)\"""", lua_code(path.read_text()))
        found += [
            f"{name_of(path)}: {word!r}"
            for word in {single or double for single, double in quoted}
            if word in CONTRACT_NAMES - {"message"} or word.startswith(KEY_PREFIXES)
        ]
    assert found == []


def test_every_operation_documents_keys_arguments_and_answers() -> None:
    assert {op.name: faults for op in Operation if (faults := _header_faults(op))} == {}


def _header_faults(operation: Operation) -> list[str]:
    source = scripts.read_core_lua(operation.value)
    code = lua_code(source)
    header = source[: re.search(r"^[^-\n]", source, re.MULTILINE).start()]  # type: ignore[union-attr]
    takes_arguments = re.search(r"ARGV|args", code) is not None
    # Each answer in the code is documented, and no other.
    given = {word.lower() for word in re.findall(r"\$ANSWER_([A-Z]+)", code)}
    _, _, explained = header.partition("-- answers")
    described = set(re.findall(r"^--   ([a-z]+)(?:,| {2})", explained, re.MULTILINE))
    rules = {
        "name": header.startswith(f"-- {operation.name}: "),
        "keys": re.search(r"^-- keys\s+(1 |none)", header, re.MULTILINE),
        "arguments": takes_arguments == bool(re.search(r"^-- args\s+1 ", header, re.MULTILINE)),
        "answers": re.search(r"^-- answers$", header, re.MULTILINE) and given == described,
    }
    return [name for name, kept in rules.items() if not kept]


def test_each_operation_has_a_file_and_each_file_is_used() -> None:
    assert {path.stem for path in LUA} == {
        "prelude",
        "queueing",
        "dispatch",
        *scripts.JOB_CREATION_PARTS,
        *(operation.value for operation in Operation),
    }


def test_every_name_in_lua_resolves() -> None:
    core = scripts.core_constants()
    front_doors = (workflow_scripts.workflow_constants(), image_scripts.image_constants())
    for path in LUA:
        for names in front_doors if path.stem in FEATURE_LUA_PARTS else (core,):
            for name in re.findall(r"\$([A-Z_]+)", path.read_text()):
                if name != "NAME":
                    assert name in names, f"{path.name}: ${name}"
    assert not re.search(r"\$[A-Z]", lua_code(scripts.CORE_SCRIPT.source))
    assert scripts.render_core_script() == scripts.CORE_SCRIPT.source


def test_contract_values_need_no_quoting_in_lua() -> None:
    for name, literal in scripts.core_constants().items():
        assert re.fullmatch(r"'[\w.:]+'|\d+", literal), name


def test_the_contract_matches_the_seeds() -> None:
    assert list(values_of(jobs.JobField)) == [
        "job_id", "task", "payload", "status", "created_ts", "updated_ts", "ttl_s", "result",
        "error",
    ]  # fmt: skip
    assert list(values_of(jobs.QueueField)) == ["job_id", "task", "payload"]
    assert list(values_of(jobs.EventField)) == ["type", "ts", "step", "data"]
    assert [task.value for task in jobs.Task] == ["chat", "plan", "code", "tool", "rag", "embed"]
    statuses = ["queued", "running", "done", "error", "canceled"]
    assert [status.value for status in jobs.Status] == statuses
    assert set(jobs.TERMINAL) == {"done", "error", "canceled"}
    keys = jobs.JobKeys()
    assert (keys.queue, jobs.WORKER_GROUP) == ("jobs:stream", "workers")
    assert (keys.job("x"), keys.events("x")) == ("job:x", "job:x:events")
    assert keys.idempotency("x") == "idempotency:x"
