"""What OpenAPI says of errors of the workflow API: its envelope instead of problems."""

from __future__ import annotations

from typing import Any

from gateway.openapi_envelope import OF_THE_DOOR
from gateway.problems import MEDIA_TYPE
from gateway.workflow.error_view import WorkflowErrorView
from gateway.workflow.paths import is_workflow

_JSON = "application/json"
_REF = "#/components/schemas/{model}"


def describe_workflow_envelope(schema: dict[str, Any]) -> None:
    """Give every error of these paths its shape."""
    error = WorkflowErrorView.model_json_schema(ref_template=_REF)
    named = schema["components"]["schemas"]
    named.update(error.pop("$defs"))
    named[WorkflowErrorView.__name__] = error
    ours = {"schema": {"$ref": _REF.format(model=WorkflowErrorView.__name__)}}
    for path, item in schema["paths"].items():
        if not is_workflow(path):
            continue
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if int(status) < 400:
                    continue
                answer["content"] = {_JSON: ours}
                if status in OF_THE_DOOR:
                    problem = {"schema": {"$ref": _REF.format(model="ProblemView")}}
                    answer["content"][MEDIA_TYPE] = problem
