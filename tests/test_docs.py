"""The documentation matches the code."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts import rag, values_of
from sluice.common.contracts.access import AccessKeys, AuditLogField, Scope, SessionField
from sluice.common.contracts.bullmq import BullKeys, BullState
from sluice.common.contracts.images import (
    DeadResultField,
    DetailField,
    Detect,
    DetectionField,
    ErrorCode,
    FailureReason,
    ImageErrorKind,
    ImageFailureField,
    ImageKeys,
    ImageResultField,
    ImageResultStatus,
    ImageStatus,
    ImageStatusField,
    Stage,
)
from sluice.common.contracts.jobs import (
    AuditField,
    BackoffField,
    CancelStage,
    CountField,
    DataField,
    DeadLetterField,
    DeadReason,
    ErrorKind,
    EventField,
    EventType,
    FrameType,
    JobField,
    JobKeys,
    LeaseField,
    QueueField,
    Status,
    Step,
    Task,
)
from sluice.common.contracts.models import (
    HandlerEventType,
    ModelErrorKind,
    ModelStep,
    ToolErrorKind,
)
from sluice.common.contracts.queue import Lane, PauseField
from sluice.common.contracts.rag import DocumentField, RagKeys
from sluice.common.contracts.stats import (
    RESOLUTIONS,
    FeedEvent,
    GatewayField,
    StatsColumn,
    StatsField,
    StatsKeys,
)
from sluice.common.contracts.workflow.fields import MetadataField
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import (
    Action,
    DraftState,
    ItemStatus,
    OnTimeout,
    StepStatus,
    WorkflowError,
    WorkflowEvent,
    WorkflowStatus,
)
from sluice.common.settings.base import CommonSettings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.gateway.features.workflows.models.responses import (
    ExecuteResponse,
    JobStatusView,
    PageView,
    ResultView,
    StepErrorView,
    StepperView,
)
from sluice.gateway.http.openapi import reference

ROOT = Path(__file__).parent.parent
CONTRACT = (ROOT / "contract.md").read_text()
#: The pages of the contract. Each name is checked on the page that defines it.
PAGES = {
    "contract.md": CONTRACT,
    **{
        f"docs/{name}.md": (ROOT / "docs" / f"{name}.md").read_text()
        for name in (
            "http", "job-processing", "redis-keys", "workflow-contract", "image-contract", "bullmq",
        )
    },
}  # fmt: skip
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


#: The page of the contract that lists all values of these enums, each as `value`.
NAMES = {
    "contract.md": (
        JobField, QueueField, EventField, ErrorKind, EventType, Status, Step, Task,
        HandlerEventType, ModelStep, ModelErrorKind, ToolErrorKind,
    ),
    "docs/job-processing.md": (LeaseField, DeadLetterField, DeadReason),
    "docs/http.md": (FrameType, StatsColumn, FeedEvent, BackoffField, Lane, Scope),
    "docs/redis-keys.md": (
        StatsField, GatewayField, AuditField, CountField, AuditLogField, SessionField,
        DocumentField,
    ),
    "docs/bullmq.md": (BullState,),
    "docs/workflow-contract.md": (
        WorkflowStatus, StepStatus, DraftState, ItemStatus, WorkflowEvent, WorkflowError, Action,
        OnTimeout,
    ),
    "docs/image-contract.md": (
        ImageStatusField, Stage, ImageResultField, ImageFailureField, ImageResultStatus,
        DeadResultField, ErrorCode, ImageStatus, Detect, FailureReason, ImageErrorKind,
    ),
}  # fmt: skip
#: The same for members of JSON, as `value` or "value".
MEMBERS = {
    "contract.md": (DataField, CancelStage),
    "docs/http.md": (PauseField,),
    "docs/redis-keys.md": (PauseField,),
    "docs/image-contract.md": (DetailField, DetectionField),
}


def pairs(pages: dict[str, tuple[type, ...]]) -> list[Any]:
    return [
        pytest.param(page, enum, id=f"{page}-{enum.__name__}")
        for page, enums in pages.items()
        for enum in enums
    ]


@pytest.mark.parametrize(("page", "enum"), pairs(NAMES))
def test_every_name_is_on_its_page_of_the_contract(page: str, enum: type) -> None:
    assert values_of(enum)
    for value in values_of(enum):
        assert f"`{value}`" in PAGES[page], value


@pytest.mark.parametrize(("page", "enum"), pairs(MEMBERS))
def test_every_member_of_json_is_on_its_page_of_the_contract(page: str, enum: type) -> None:
    for value in values_of(enum):
        assert re.search(rf"[`\"]{value}[`\"]", PAGES[page]), value


#: The page with the problem codes of a feature; all others are in docs/http.md.
CODE_PAGES = {
    "features/images": "docs/image-contract.md",
    "features/workflows": "docs/workflow-contract.md",  # `WorkflowError` has its codes
    "features/bullmq": "docs/bullmq.md",
}


def test_every_problem_code_is_on_its_page_of_the_contract() -> None:
    codes: set[tuple[str, str]] = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        feature = "/".join(path.relative_to(ROOT / "gateway").parts[:2])
        page = CODE_PAGES.get(feature, "docs/http.md")
        codes |= {(page, code) for code in CODE.findall(path.read_text())}
    assert len(codes) > 30
    assert {(page, code) for page, code in codes if f"`{code}`" not in PAGES[page]} == set()


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


def documented_keys(page: str) -> dict[str, str]:
    """Redis types of all keys on a page of the contract. `:x` after a key stands for the key with
    another suffix. Several keys in a row share one type, or have one each.
    """
    found = {}
    for head, _, *rows in tables(PAGES[page]):
        if head[:2] != ["key", "type"]:
            continue
        for keys, types, *_ in rows:
            names = re.findall(r"`([^`]+)`", keys)
            each = types.split(", ") if "," in types else [types] * len(names)
            for name, type_ in zip(names, each, strict=True):
                full = names[0].rpartition(":")[0] + name if name.startswith(":") else name
                found[plain_key(full)] = type_
    return found


#: Keys that third-party producers and workers use, with their types.
PUBLIC_KEYS = {
    JobKeys().stream: "stream",
    JobKeys().for_lane("high").stream: "stream",
    JobKeys().job("{}"): "hash",
    JobKeys().events("{}"): "stream",
    JobKeys().idempotency("{}"): "string",
}
#: The page of the contract with all keys of these classes, except the public keys of jobs.
KEY_PAGES = (
    ("docs/redis-keys.md", JobKeys()),
    ("docs/redis-keys.md", StatsKeys("jobs:stream")),
    ("docs/redis-keys.md", AccessKeys()),
    ("docs/redis-keys.md", RagKeys("{}")),
    ("docs/image-contract.md", ImageKeys()),
    ("docs/workflow-contract.md", WorkflowKeys()),
    ("docs/bullmq.md", BullKeys("{}")),
)


def keys_in_code() -> Iterator[tuple[str, str, str]]:
    """The page of every key, the key with its arguments in braces, and its type from the
    docstring."""
    resolution = RESOLUTIONS[0]
    for page, keys in KEY_PAGES:
        for name, member in vars(type(keys)).items():
            called = member.fget if isinstance(member, property) else member
            documented_value = re.match(r"(VECTOR SET|[A-Z]+)\b", inspect.getdoc(called) or "")
            if documented_value is None or documented_value[1] not in TYPES or name.startswith("_"):
                continue
            if isinstance(keys, BullKeys) and ", added by Sluice:" not in (called.__doc__ or ""):
                continue
            if isinstance(member, property):
                yield page, getattr(keys, name), TYPES[documented_value[1]]
                continue
            wanted = [
                each
                for each in inspect.signature(called).parameters.values()
                if each.name != "self" and each.default is each.empty
            ]
            values: list[Any] = [resolution if name == "ring" else "{}" for _ in wanted]
            yield page, getattr(keys, name)(*values), TYPES[documented_value[1]]
    yield "docs/redis-keys.md", rag.namespaces_key(), TYPES["SET"]
    yield "docs/redis-keys.md", rag.upload_key("{}"), TYPES["STRING"]


def test_every_key_is_on_its_page_of_the_contract_with_its_type() -> None:
    in_code = [(page, key, type_) for page, key, type_ in keys_in_code() if key not in PUBLIC_KEYS]
    in_code += [("contract.md", key, type_) for key, type_ in PUBLIC_KEYS.items()]
    assert len(in_code) > 60
    assert {page for page, _, _ in in_code} == {"contract.md", *dict(KEY_PAGES)}
    documented = {page: documented_keys(page) for page in PAGES}
    for page, key, type_ in in_code:
        assert documented[page].get(key) == type_, (page, key)


def test_the_contract_lists_events_that_handlers_may_emit() -> None:
    [may] = re.findall(r"Handlers may emit ([^.]+?) and types", CONTRACT)
    [may_not] = re.findall(r"Sluice alone emits ([^:]+):", CONTRACT)
    reserved = set(values_of(EventType)) - {EventType.MESSAGE}
    assert set(re.findall(r"`(\w+)`", may)) == {EventType.MESSAGE, *values_of(HandlerEventType)}
    assert set(re.findall(r"`(\w+)`", may_not)) == reserved


def test_the_contract_has_every_member_of_workflow_responses() -> None:
    """Members of the seed's examples, and of the table of later additions."""
    workflows = PAGES["docs/workflow-contract.md"]
    status, result, _ = map(json.loads, re.findall(r"```json\n(.*?)```", workflows, re.DOTALL))
    [table] = [rows for rows in tables(workflows) if rows[0] == ["where", "further members"]]
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


def code_blocks(kind: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{document.name}-{text.splitlines()[0][:40]}")
        for document in DOCUMENTS
        for text in re.findall(
            rf"^```{kind}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL
        )
    ]


@pytest.mark.parametrize("text", code_blocks("python"))
def test_python_blocks_can_be_compiled(text: str) -> None:
    compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("text", code_blocks("(?:sh|bash)"))
def test_shell_blocks_have_no_ellipsis_and_can_be_parsed(text: str) -> None:
    commands = re.sub(r"(?m)(^|\s)#.*$", "", text)
    assert "…" not in commands
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)
