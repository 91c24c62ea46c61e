"""The workflow script: `lua/*.lua` between the core's parts, names rendered from contracts."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final

from common import scripts
from common.contracts import rag, webhooks, workflow
from common.workflow.types import WorkflowAnswer

_LUA: Final = Path(__file__).with_name("lua")
#: What the operations share, in the order in which they use each other.
SHARED: Final = ("state", "steps", "items", "review", "effects")
_ENUMS: dict[str, type[Enum]] = {
    "WORKFLOW": workflow.WorkflowStatus,
    "STEPPER": workflow.StepStatus,
    "DRAFT": workflow.DraftState,
    "ITEM": workflow.ItemStatus,
    "KIND": workflow.StepKind,
    "WF_EVENT": workflow.WorkflowEvent,
    "ACTION": workflow.Action,
    "MODE": workflow.ReviewMode,
    "ON_TIMEOUT": workflow.OnTimeout,
    "CODE": workflow.WorkflowError,
    "RECORD": workflow.JobHash,
    "FIELD": workflow.StepField,
    "PAYLOAD": workflow.StepPayload,
    "ARGUMENT": workflow.StepArgument,
    "DEFINITION": workflow.DefinitionField,
    "REVIEW": workflow.ReviewField,
    "REMEMBERED": workflow.AnswerField,
    "FACT": workflow.Fact,
    "OPERATION_FIELD": workflow.OperationField,
    "OPERATION_KIND": workflow.OperationKind,
    "AUDIT": workflow.AuditField,
    "ERROR": workflow.ErrorMember,
    "DECIDER": workflow.Decider,
    "SELECTION": workflow.Selection,
    "EFFECT": workflow.EffectField,
    "RAG": rag.RagPart,
    "CLAIM": rag.ClaimKind,
    "DOCUMENT": rag.DocumentField,
    "OUTBOX": workflow.OutboxField,
    "WF_OPERATION": workflow.WorkflowOperation,
    "DELIVERY": webhooks.DeliveryField,
    "LETTER": webhooks.LetterField,
    "SETTLEMENT": webhooks.Settlement,
    "REDRIVE": webhooks.RedriveStatus,
    "SENT": workflow.DeliveryStatus,
    "FOUND": WorkflowAnswer,
}
_KEYS: Final = workflow.WorkflowKeys()


def _key_names() -> dict[str, str]:
    """Keys of a job by what follows its record's, keys of all jobs whole."""
    record = _KEYS.job("")
    of_a_job = {
        "STEPS": _KEYS.steps(""),
        "ITEMS": _KEYS.items(""),
        "STATES": _KEYS.states(""),
        "ORDER": _KEYS.order(""),
        "EVENTS": _KEYS.events(""),
        "UNDO": _KEYS.undo(""),
        "OPERATIONS": _KEYS.operations(""),
        "UNDOABLE": _KEYS.undoable(""),
        "DATA": _KEYS.data(""),
        "PARTS": _KEYS.parts(""),
        "OUTBOX": _KEYS.outbox(""),
    }
    whole = {
        "JOB": record,
        "SEQUENCE": _KEYS.sequence(""),
        "INDEX": _KEYS.index(),
        "RUNNING": _KEYS.running,
        "REVIEWS": _KEYS.reviews,
        "UNSETTLED": _KEYS.unsettled,
        "DELIVERIES": _KEYS.deliveries,
        "WAKE": _KEYS.wake,
        "DELIVERY": _KEYS.delivery(""),
        "DEAD_DELIVERIES": _KEYS.dead_deliveries,
        "LETTERS": _KEYS.letters,
        "REDRIVES": _KEYS.redrives(""),
    }
    suffixes = {name: key[len(record) + 1 :] for name, key in of_a_job.items()}
    return {f"KEY_{name}": f"'{key}'" for name, key in {**suffixes, **whole}.items()}


def workflow_names() -> dict[str, str]:
    """Every name in the workflow's Lua."""
    names = {**scripts.core_names(), **scripts.names_of(_ENUMS), **_key_names()}
    names["JOB_ID_PREFIX"] = f"'{workflow.JOB_ID_PREFIX}'"
    names["EXECUTION_ID_PREFIX"] = f"'{workflow.EXECUTION_ID_PREFIX}'"
    names["UNDO_PREFIX"] = f"'{workflow.UNDO_PREFIX}'"
    names["STEP_TOOL"] = f"'{workflow.STEP_TOOL}'"
    names["UNDO_DEPTH"] = str(workflow.UNDO_DEPTH)
    names["MOST_ITEMS"] = str(workflow.MOST_ITEMS)
    names["MOST_UNSENT"] = str(workflow.MOST_UNSENT)
    names["EVENTS_KEPT"] = str(workflow.EVENTS_KEPT)
    names["LONGEST_TTL_S"] = str(workflow.LONGEST_TTL_S)
    names["SEQUENCE_TTL_S"] = str(workflow.SEQUENCE_TTL_S)
    names["DELIVERY_KEPT_S"] = str(webhooks.DELIVERY_KEPT_S)
    names["LETTERS_KEPT"] = str(webhooks.LETTERS_KEPT)
    return names


def render() -> str:
    """The whole script."""
    own = (*SHARED, *(operation.value for operation in workflow.WorkflowOperation))
    parts = [scripts.lua_of(part) for part in scripts.FOR_FRONT_DOORS]
    parts += [(_LUA / f"{part}.lua").read_text() for part in own]
    parts.append(scripts.lua_of("dispatch"))
    return scripts.rendered("\n".join(parts), workflow_names())


WORKFLOW: Final = scripts.Script(render)
