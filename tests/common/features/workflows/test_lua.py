"""Conventions of the workflows' Lua files: names from the contracts, headers, one file per role."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.contracts import jobs, values_of
from common.contracts.workflow.keys import WorkflowKeys, workflow_key_patterns
from common.contracts.workflow.operations import WorkflowOperation
from common.features.workflows import scripts

LUA = sorted((Path(scripts.__file__).with_name("lua")).rglob("*.lua"))
#: Lua's limit of local variables per function; the whole script is one function.
MOST_LOCALS = 200
PREFIXES = ("job:", "jobs:", "idempotency", "workflow:", "rag:", "rag.")


def code_of(path: Path) -> str:
    return re.sub(r"--.*", "", path.read_text())


def header_of(path: Path) -> str:
    source = path.read_text()
    return source[: re.search(r"^[^-\n]", source, re.MULTILINE).start()]  # type: ignore[union-attr]


def test_each_operation_has_a_file_and_each_file_a_use() -> None:
    operations = {operation.value for operation in WorkflowOperation}
    assert {path.stem for path in LUA} == operations | set(scripts.SHARED_PARTS)


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_names_come_from_the_contracts(path: Path) -> None:
    names = scripts.workflow_constants()
    for name in re.findall(r"\$([A-Z_]+)", path.read_text()):
        assert name in names, f"{path.name}: ${name}"
    written = set(re.findall(r"'([^'\n]*)'", code_of(path)))
    fields = {
        *values_of(jobs.JobField),
        *values_of(jobs.LeaseField),
        *values_of(jobs.EventField),
    }
    assert not written & fields
    assert not [word for word in written if word.startswith(PREFIXES)]


@pytest.mark.parametrize("operation", list(WorkflowOperation), ids=lambda one: one.value)
def test_every_operation_documents_keys_arguments_and_answers(
    operation: WorkflowOperation,
) -> None:
    [path] = [path for path in LUA if path.stem == operation.value]
    header = header_of(path)
    assert header.startswith(f"-- {operation.name}: ")
    assert re.search(r"^-- keys\s+(1 |none)", header, re.MULTILINE)
    assert re.search(r"^-- args\s+1 ", header, re.MULTILINE)
    _, _, explained = header.partition("-- answers")
    given = {word.lower() for word in re.findall(r"\$FOUND_([A-Z]+)", code_of(path))}
    if re.search(r"\brefuse\(", code_of(path)):
        given.add("refused")
    assert given <= set(re.findall(r"[a-z]+", explained))


def test_contract_values_need_no_quoting_in_lua() -> None:
    for name, literal in scripts.workflow_constants().items():
        assert re.fullmatch(r"'[\w.: -]+'|\d+", literal), name


def test_the_script_is_built_from_the_files_within_lua_limits() -> None:
    source = scripts.WORKFLOW_SCRIPT.source
    assert scripts.render_script() == source
    assert not re.search(r"\$[A-Z]", re.sub(r"--.*", "", source))
    assert len(re.findall(r"^local ", source, re.MULTILINE)) < MOST_LOCALS - 20


def test_every_key_is_among_the_patterns() -> None:
    keys = WorkflowKeys()
    starts = tuple(pattern.rstrip("*") for pattern in workflow_key_patterns())
    for key in (keys.job("x"), keys.index("t"), keys.running, keys.answer("s", "k", "t")):
        assert key.startswith(starts)
