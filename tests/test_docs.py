"""The documentation matches the code."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.contracts import rag, values_of
from common.contracts.access import AccessKeys
from common.contracts.bullmq import BullKeys
from common.contracts.images import (
    DeadResultField,
    DetailField,
    Detect,
    DetectionField,
    ErrorCode,
    FailureReason,
    ImageFailureField,
    ImageKeys,
    ImageResultField,
    ImageResultStatus,
    ImageStatus,
    ImageStatusField,
    Stage,
)
from common.contracts.jobs import (
    CancelStage,
    DataField,
    DeadLetterField,
    DeadReason,
    ErrorKind,
    EventField,
    EventType,
    JobField,
    JobKeys,
    LeaseField,
    QueueField,
    Status,
    Step,
)
from common.contracts.models import HandlerEventType, ModelErrorKind, ModelStep, ToolErrorKind
from common.contracts.queue import PauseField
from common.contracts.rag import RagKeys
from common.contracts.stats import (
    RESOLUTIONS,
    FeedEvent,
    GatewayField,
    StatsColumn,
    StatsField,
    StatsKeys,
)
from common.contracts.workflow.fields import MetadataField
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.statuses import (
    Action,
    DraftState,
    ItemStatus,
    OnTimeout,
    StepStatus,
    WorkflowError,
    WorkflowEvent,
    WorkflowStatus,
)
from common.settings.base import CommonSettings
from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings
from gateway.features.workflows.models.responses import (
    ExecuteResponse,
    JobStatusView,
    PageView,
    ResultView,
    StepErrorView,
    StepperView,
)
from gateway.http.openapi import reference

ROOT = Path(__file__).parent.parent
CONTRACT = (ROOT / "contract.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| (.+?) \| ", re.MULTILINE)
CODE = re.compile(r'Problem\(\s*\d+,\s*"([a-z_]+)"')


def documented() -> dict[str, str]:
    return dict(ROW.findall(SETTINGS))


def test_exactly_the_existing_settings_are_documented() -> None:
    fields = {**GatewaySettings.model_fields, **WorkerSettings.model_fields}
    assert set(documented()) == {name.upper() for name in fields}


@pytest.mark.parametrize("kind", [CommonSettings, GatewaySettings, WorkerSettings])
def test_documented_defaults_are_the_real_ones(kind: type[CommonSettings]) -> None:
    for name, field in kind.model_fields.items():
        documented_value = documented()[name.upper()].strip("`")
        if field.default_factory is not None:
            assert documented_value == "host-pid"
        elif field.default is None:
            assert documented_value == "unset"
        else:
            assert documented_value == (str(field.default) or "empty"), name


NAMES = (
    JobField, QueueField, EventField, LeaseField, DeadLetterField, DeadReason, ErrorKind, EventType,
    Status, Step, HandlerEventType, ModelStep, ModelErrorKind, ToolErrorKind, WorkflowStatus,
    StepStatus, DraftState, ItemStatus, WorkflowEvent, WorkflowError, Action, OnTimeout,
    ImageStatusField, Stage, ImageResultField,
    ImageFailureField, ImageResultStatus, DeadResultField, ErrorCode, ImageStatus, Detect,
    FailureReason, StatsField, StatsColumn, FeedEvent, GatewayField,
)  # fmt: skip


@pytest.mark.parametrize("enum", NAMES)
def test_every_name_is_in_the_contract(enum: type) -> None:
    for value in values_of(enum):
        assert f"`{value}`" in CONTRACT, value


@pytest.mark.parametrize("enum", [DataField, CancelStage, DetailField, DetectionField, PauseField])
def test_every_member_of_event_data_is_in_the_contract(enum: type) -> None:
    for value in values_of(enum):
        assert re.search(rf"[`\"]{value}[`\"]", CONTRACT), value


def test_every_problem_code_is_in_the_contract() -> None:
    sources = [path.read_text() for path in (ROOT / "gateway").rglob("*.py")]
    codes = {code for source in sources for code in CODE.findall(source)}
    assert len(codes) > 10
    assert {code for code in codes if f"`{code}`" not in CONTRACT} == set()


DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    ROOT / "contract.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
#: Redis types as named in docstrings of keys, and in the contract.
TYPES = {
    "HASH": "hash",
    "STRING": "string",
    "LIST": "list",
    "SET": "set",
    "ZSET": "sorted set",
    "STREAM": "stream",
    "CHANNEL": "channel",
    "VECTOR SET": "vector set",
}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]


def tables(text: str) -> Iterator[list[list[str]]]:
    """Rows of each table, without code blocks."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for is_table, lines in itertools.groupby(text.splitlines(), lambda line: line[:1] == "|"):
        if is_table:
            yield [cells(line) for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_have_a_head_and_rows_of_one_length(document: Path) -> None:
    for head, *rows in tables(document.read_text()):
        assert rows, head
        assert set("".join(rows[0])) <= set(":-"), head
        assert {len(row) for row in rows} == {len(head)}, head


def plain_key(key: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", key)


def documented_keys() -> dict[str, str]:
    """Redis types of all keys in the contract. `:x` after a key stands for the key with another
    suffix. Several keys in a row share one type, or have one each.
    """
    found = {}
    for head, _, *rows in tables(CONTRACT):
        if head[:2] != ["key", "type"]:
            continue
        for keys, types, *_ in rows:
            names = re.findall(r"`([^`]+)`", keys)
            each = types.split(", ") if "," in types else [types] * len(names)
            for name, type_ in zip(names, each, strict=True):
                full = names[0].rpartition(":")[0] + name if name.startswith(":") else name
                found[plain_key(full)] = type_
    return found


def keys_in_code() -> Iterator[tuple[str, str]]:
    """Every key with its arguments in braces, and its type from the docstring."""
    resolution = RESOLUTIONS[0]
    for keys in (
        *(JobKeys(), StatsKeys("jobs:stream"), AccessKeys(), RagKeys("{}"), ImageKeys()),
        *(WorkflowKeys(), BullKeys("{}")),
    ):
        for name, member in vars(type(keys)).items():
            called = member.fget if isinstance(member, property) else member
            documented_value = re.match(r"(VECTOR SET|[A-Z]+)\b", inspect.getdoc(called) or "")
            if documented_value is None or documented_value[1] not in TYPES or name.startswith("_"):
                continue
            if isinstance(keys, BullKeys) and ", added by Sluice:" not in (called.__doc__ or ""):
                continue
            if isinstance(member, property):
                yield getattr(keys, name), TYPES[documented_value[1]]
                continue
            wanted = [
                each
                for each in inspect.signature(called).parameters.values()
                if each.name != "self" and each.default is each.empty
            ]
            values: list[Any] = [resolution if name == "ring" else "{}" for _ in wanted]
            yield getattr(keys, name)(*values), TYPES[documented_value[1]]
    yield rag.namespaces_key(), TYPES["SET"]
    yield rag.upload_key("{}"), TYPES["STRING"]


def test_every_key_is_in_the_contract_with_its_type() -> None:
    in_code = dict(keys_in_code())
    assert len(in_code) > 60
    assert any(key.startswith("bull:") for key in in_code)
    documented = documented_keys()
    assert {key: documented.get(key) for key in in_code} == in_code


def test_the_contract_lists_events_that_handlers_may_emit() -> None:
    [may] = re.findall(r"Handlers may emit ([^.]+?) and types", CONTRACT)
    [may_not] = re.findall(r"Sluice alone emits ([^:]+):", CONTRACT)
    reserved = set(values_of(EventType)) - {EventType.MESSAGE}
    assert set(re.findall(r"`(\w+)`", may)) == {EventType.MESSAGE, *values_of(HandlerEventType)}
    assert set(re.findall(r"`(\w+)`", may_not)) == reserved


def test_the_contract_has_every_member_of_workflow_responses() -> None:
    """Members of the seed's examples, and of the table of later additions."""
    status, result, _ = map(json.loads, re.findall(r"```json\n(.*?)```", CONTRACT, re.DOTALL))
    [table] = [rows for rows in tables(CONTRACT) if rows[0] == ["where", "further members"]]
    added = {where: set(re.findall(r"`(\w+)`", members)) - {"null"} for where, members in table[2:]}
    job = JobStatusView.model_fields["job"].annotation
    page = set(PageView.model_fields) - added["every `pagination`"]
    assert set(job.model_fields) == set(status["job"])  # type: ignore[union-attr]
    assert page == set(status["job"]["pagination"]["events"])
    assert page == set(result["result"]["pagination"])
    steps = set(status["job"]["stepper"][0]) | added["`stepper[]`"] - {"errors"}
    assert set(StepperView.model_fields) == steps
    assert set(values_of(MetadataField)) == set(status["job"]["metadata"]) | added["`metadata`"]
    assert set(ResultView.model_fields) == set(result)
    assert set(ExecuteResponse.model_fields) == set(result) | added["an answer to execute"]
    assert set(StepErrorView.model_fields) == added["`errors[]`"]


def test_the_api_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == reference.reference(), "run `make docs`"


def test_links_in_the_documents_are_valid() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)


def test_files_and_directories_named_in_the_documents_exist() -> None:
    packages = "sluice|client|common|worker|gateway|ops|deploy|tests|chaos|bench|examples"
    named = re.compile(rf"`((?:{packages})/[\w/.-]*)`")
    for document in DOCUMENTS:
        for name in named.findall(document.read_text()):
            assert (ROOT / name).exists(), (document.name, name)


def anchors(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_are_valid() -> None:
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text()):
            path = document.parent / target if target else document
            if path.suffix == ".md":
                assert anchor in anchors(path), (document.name, target, anchor)
