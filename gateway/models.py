"""What requests and answers look like; the OpenAPI page is made from these."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.jobs import TTL_MAX_S, TTL_MIN_S, JobField, Status, Task

EXAMPLE_REQUEST: dict[str, Any] = {
    JobField.TASK.value: Task.CHAT.value,
    JobField.PAYLOAD.value: {"text": "hello"},
}
_UUID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"


class CreateJobRequest(BaseModel):
    """A job to do."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [EXAMPLE_REQUEST]},
    )

    task: Task = Field(description="What kind of work.")
    payload: dict[str, Any] = Field(description="The work's input, passed on as it is.")
    ttl_s: Annotated[int, Field(strict=True, ge=TTL_MIN_S, le=TTL_MAX_S)] | None = Field(
        None, description="Seconds the job is kept after its last change. Default: JOB_TTL_S."
    )


class JobAccepted(BaseModel):
    """The job exists; watch it at `Location` + `/events`."""

    job_id: str = Field(examples=[_UUID])


class JobView(BaseModel):
    """A job as it stands."""

    job_id: str = Field(examples=[_UUID])
    task: Task
    payload: Any = Field(examples=[{"text": "hello"}])
    status: Status
    created_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    updated_ts: int = Field(description="Unix milliseconds.", examples=[1760000000042])
    ttl_s: int = Field(examples=[86400])
    result: Any = Field(None, examples=[{"text": "echo(task=chat): {'text': 'hello'}", "ms": 0}])
    error: Any = Field(None, examples=[None])
