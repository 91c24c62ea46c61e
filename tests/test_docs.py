"""What the documents say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.contracts.images import (
    DeadResultField,
    DetailField,
    Detect,
    DetectionField,
    ErrorCode,
    FailureField,
    ImageStatus,
    Reason,
    ResultField,
    ResultStatus,
    Stage,
    StatusField,
)
from common.contracts.jobs import (
    CancelStage,
    DataField,
    DeadField,
    DeadReason,
    ErrorKind,
    EventField,
    EventType,
    JobField,
    LeaseField,
    QueueField,
    Status,
    Step,
)
from common.contracts.models import Channel, ModelKind, ModelStep
from common.contracts.pause import PauseField
from common.contracts.stats import FeedEvent, GatewayField, StatsColumn, StatsField
from common.contracts.tools import ToolKind
from common.contracts.workflow import (
    Action,
    DraftState,
    ItemStatus,
    OnTimeout,
    StepStatus,
    WorkflowError,
    WorkflowEvent,
    WorkflowStatus,
)
from common.settings import CommonSettings, GatewaySettings, WorkerSettings
from gateway import api_reference

ROOT = Path(__file__).parent.parent
CONTRACT = (ROOT / "contract.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| (.+?) \| ", re.MULTILINE)
CODE = re.compile(r'Problem\(\s*\d+,\s*"([a-z_]+)"')


def documented() -> dict[str, str]:
    return dict(ROW.findall(SETTINGS))


def test_every_setting_is_documented_and_no_other() -> None:
    fields = {**GatewaySettings.model_fields, **WorkerSettings.model_fields}
    assert set(documented()) == {name.upper() for name in fields}


@pytest.mark.parametrize("kind", [CommonSettings, GatewaySettings, WorkerSettings])
def test_documented_defaults_are_the_real_ones(kind: type[CommonSettings]) -> None:
    for name, field in kind.model_fields.items():
        said = documented()[name.upper()].strip("`")
        if field.default_factory is not None:
            assert said == "host-pid"
        elif field.default is None:
            assert said == "unset"
        else:
            assert said == (str(field.default) or "empty"), name


NAMES = (
    JobField, QueueField, EventField, LeaseField, DeadField, DeadReason, ErrorKind, EventType,
    Status, Step, Channel, ModelStep, ModelKind, ToolKind, WorkflowStatus, StepStatus, DraftState,
    ItemStatus, WorkflowEvent, WorkflowError, Action, OnTimeout, StatusField, Stage, ResultField,
    FailureField, ResultStatus, DeadResultField, ErrorCode, ImageStatus, Detect,
    Reason, StatsField, StatsColumn, FeedEvent, GatewayField,
)  # fmt: skip


@pytest.mark.parametrize("enum", NAMES)
def test_every_name_is_in_the_contract(enum: type) -> None:
    for member in enum:  # type: ignore[attr-defined]
        assert f"`{member.value}`" in CONTRACT, member


@pytest.mark.parametrize("enum", [DataField, CancelStage, DetailField, DetectionField, PauseField])
def test_every_member_of_event_data_is_in_the_contract(enum: type) -> None:
    for member in enum:  # type: ignore[attr-defined]
        assert re.search(rf"[`\"]{member.value}[`\"]", CONTRACT), member


def test_every_problem_code_is_in_the_contract() -> None:
    sources = [path.read_text() for path in (ROOT / "gateway").rglob("*.py")]
    codes = {code for source in sources for code in CODE.findall(source)}
    assert len(codes) > 10
    assert {code for code in codes if f"`{code}`" not in CONTRACT} == set()


def test_the_reference_of_the_api_is_up_to_date() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_reference.reference(), "run `make docs`"


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "contract.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)


def test_files_named_in_the_documents_exist() -> None:
    named = re.compile(r"`((?:client|common|worker|gateway|ops|deploy|tests|chaos)/[\w/.-]+\.\w+)`")
    for document in (ROOT / "README.md", ROOT / "contract.md", *(ROOT / "docs").glob("*.md")):
        for name in named.findall(document.read_text()):
            assert (ROOT / name).exists(), (document.name, name)
