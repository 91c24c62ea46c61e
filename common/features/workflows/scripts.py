"""The workflow script: `lua/**/*.lua` between parts of the job script, rendered from contracts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sluice.common.contracts import rag, webhooks
from sluice.common.contracts.workflow import fields, keys, operations, statuses
from sluice.common.features.workflows.types import (
    IdempotencyClaim,
    StepExecution,
    StepIds,
    WorkflowAnswer,
)
from sluice.common.jobs.limits import AdmissionLimits, admission_arguments
from sluice.common.jobs.scripts import JOB_CREATION_PARTS, JobScript, core_constants, read_core_lua
from sluice.common.jobs.store import Fence
from sluice.common.redis.scripts import Argument, lua_enum_names, read_lua, render_lua

_NO_FENCE: Final = Fence("", 0, "")


def idempotency_arguments(once: IdempotencyClaim) -> list[Argument]:
    """The token distinguishes a repetition of this call from other calls with the same key."""
    return [once.fingerprint, once.ttl_s, once.claim_ms, os.urandom(8).hex()]


def execution_arguments(running: StepExecution) -> list[Argument]:
    """The execution of a worker, and the attempt of its core job."""
    return [*running[:3], *(running.fence or _NO_FENCE)]


def start_arguments(ids: StepIds, admission: AdmissionLimits) -> list[Argument]:
    """Ids for a step that may start, and the limits for that."""
    return [*ids, admission.core_ttl_s, *admission_arguments(admission)]


def flag(value: bool) -> str:
    """A boolean as the scripts read it."""
    return "1" if value else ""


_LUA: Final = Path(__file__).with_name("lua")
#: Parts shared by the operations, in the order in which they use each other.
SHARED_PARTS: Final = ("state", "steps", "items", "review", "effects")
_ENUMS: dict[str, type] = {
    "WORKFLOW": statuses.WorkflowStatus,
    "STEPPER": statuses.StepStatus,
    "DRAFT": statuses.DraftState,
    "ITEM": statuses.ItemStatus,
    "KIND": statuses.StepKind,
    "WF_EVENT": statuses.WorkflowEvent,
    "ACTION": statuses.Action,
    "MODE": statuses.ReviewMode,
    "ON_TIMEOUT": statuses.OnTimeout,
    "CODE": statuses.WorkflowError,
    "RECORD": fields.WorkflowJobField,
    "FIELD": fields.StepField,
    "PAYLOAD": fields.StepPayloadField,
    "ARGUMENT": fields.StepArgumentField,
    "DEFINITION": fields.DefinitionField,
    "REVIEW": fields.ReviewField,
    "REMEMBERED": fields.StoredAnswerField,
    "FACT": operations.WorkflowFact,
    "OPERATION_FIELD": operations.OperationField,
    "OPERATION_KIND": operations.OperationKind,
    "AUDIT": operations.ReviewItemField,
    "ERROR": statuses.ErrorField,
    "DECIDER": operations.Decider,
    "SELECTION": statuses.Selection,
    "EFFECT": operations.EffectField,
    "RAG": rag.RagKeySuffix,
    "CLAIM": rag.ClaimFieldPrefix,
    "DOCUMENT": rag.DocumentField,
    "OUTBOX": fields.OutboxField,
    "WF_OPERATION": operations.WorkflowOperation,
    "DELIVERY": webhooks.DeliveryField,
    "LETTER": webhooks.WebhookDeadLetterField,
    "SETTLEMENT": webhooks.DeliveryOutcome,
    "REDRIVE": webhooks.RedriveStatus,
    "SENT": statuses.DeliveryStatus,
    "FOUND": WorkflowAnswer,
}
_KEYS: Final = keys.WorkflowKeys()


def _key_names() -> dict[str, str]:
    """Suffixes of a job's keys, and complete keys shared by all jobs."""
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
        "UNSETTLED": _KEYS.jobs_with_effects,
        "DELIVERIES": _KEYS.deliveries,
        "WAKE": _KEYS.wake,
        "DELIVERY": _KEYS.delivery(""),
        "DEAD_DELIVERIES": _KEYS.dead_letters,
        "LETTERS": _KEYS.dead_letter_states,
        "REDRIVES": _KEYS.redrives(""),
    }
    suffixes = {name: key[len(record) + 1 :] for name, key in of_a_job.items()}
    return {f"KEY_{name}": f"'{key}'" for name, key in {**suffixes, **whole}.items()}


def workflow_constants() -> dict[str, str]:
    """Every `$NAME` in the Lua of workflows, with its value."""
    names = {**core_constants(), **lua_enum_names(_ENUMS), **_key_names()}
    names["JOB_ID_PREFIX"] = f"'{statuses.JOB_ID_PREFIX}'"
    names["EXECUTION_ID_PREFIX"] = f"'{statuses.EXECUTION_ID_PREFIX}'"
    names["UNDO_PREFIX"] = f"'{statuses.UNDO_PREFIX}'"
    names["STEP_TOOL"] = f"'{statuses.STEP_TOOL}'"
    names["UNDO_DEPTH"] = str(statuses.UNDO_DEPTH)
    names["MOST_ITEMS"] = str(statuses.MOST_ITEMS)
    names["MOST_UNSENT"] = str(statuses.MOST_UNSENT)
    names["EVENTS_KEPT"] = str(statuses.EVENTS_KEPT)
    names["LONGEST_TTL_S"] = str(statuses.LONGEST_TTL_S)
    names["SEQUENCE_TTL_S"] = str(statuses.SEQUENCE_TTL_S)
    names["DELIVERY_KEPT_S"] = str(webhooks.DELIVERY_TTL_S)
    names["LETTERS_KEPT"] = str(webhooks.DEAD_LETTERS_KEPT)
    return names


def render_script() -> str:
    own = (*SHARED_PARTS, *(operation.value for operation in operations.WorkflowOperation))
    parts = [read_core_lua(part) for part in JOB_CREATION_PARTS]
    parts += [read_lua(_LUA, part) for part in own]
    parts.append(read_core_lua("dispatch"))
    return render_lua("\n".join(parts), workflow_constants())


WORKFLOW_SCRIPT: Final = JobScript(render_script)
