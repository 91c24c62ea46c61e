"""What requests and answers about BullMQ's jobs look like: in its own words, within its bounds."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from common.contracts.bullmq import BullAnswer, BullState

EXAMPLE_REQUEST: Final[dict[str, Any]] = {
    "name": "video-generation",
    "data": {"videoId": "550e8400-e29b-41d4-a716-446655440000"},
    "opts": {
        "priority": 1,
        "attempts": 3,
        "backoff": {"type": "exponential", "delay": 1000},
    },
}
#: The largest that BullMQ takes.
MOST_PRIORITY: Final = 2_097_151
#: A year. Times are stored such that they fit a double up to 2039.
LONGEST_DELAY_MS: Final = 365 * 24 * 3600 * 1000
MOST_ATTEMPTS: Final = 1000
LONGEST_ID: Final = 128
LONGEST_NAME: Final = 256

_Count = Annotated[int, Field(strict=True, ge=0, le=1 << 31)]
_Delay = Annotated[int, Field(strict=True, ge=0, le=LONGEST_DELAY_MS)]
_STRICT_CONFIG = ConfigDict(extra="forbid")


def is_job_id(value: str) -> bool:
    """Whether a job may be called so by who adds it."""
    return (
        0 < len(value) <= LONGEST_ID
        and value.isprintable()
        and not any(sign in value for sign in ":/ ")
        and not value.isdigit()
    )


def _job_id(value: str) -> str:
    if not is_job_id(value):
        raise PydanticCustomError(
            "bull_id",
            "Input should be 1 to 128 printable characters, without : / and spaces, and not only "
            "digits, which BullMQ gives out itself",
        )
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise PydanticCustomError("printable", "Input should be printable")
    return value


class BullBackoffOptions(BaseModel):
    """How long to wait between attempts."""

    model_config = _STRICT_CONFIG

    type: Literal["fixed", "exponential"] = Field(
        description="The same wait each time, or twice the last one."
    )
    delay: _Delay = Field(0, description="Milliseconds before the second attempt.")
    jitter: Annotated[float, Field(strict=True, ge=0, le=1)] | None = Field(
        None, description="Which part of the wait is random."
    )


class BullRetentionOptions(BaseModel):
    """Which jobs that have ended are kept."""

    model_config = _STRICT_CONFIG

    count: _Count | None = Field(None, description="So many.")
    age: _Count | None = Field(None, description="So long, in seconds.")
    limit: _Count | None = Field(None, description="Most that are removed at once.")


class BullDeduplicationOptions(BaseModel):
    """When this job is as good as another one."""

    model_config = _STRICT_CONFIG

    id: Annotated[
        str, Field(strict=True, min_length=1, max_length=LONGEST_ID), AfterValidator(_printable)
    ] = Field(description="Jobs with the same are as good as each other.")
    ttl: _Delay | None = Field(
        None, description="Milliseconds for which that holds. Default: until the job has ended."
    )
    extend: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether every further one begins that time anew."
    )
    replace: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether a further one takes the place of one that is delayed."
    )
    keepLastIfActive: Annotated[bool, Field(strict=True)] | None = Field(  # noqa: N815
        None, description="Whether the last of those that come while it runs is run after it."
    )


Retention = Annotated[bool, Field(strict=True)] | _Count | BullRetentionOptions


class BullJobOptions(BaseModel):
    """Options of a job, as BullMQ's `add` knows them."""

    model_config = _STRICT_CONFIG

    priority: Annotated[int, Field(strict=True, ge=0, le=MOST_PRIORITY)] | None = Field(
        None, description="1 is the most urgent; 0 and absent go before all others."
    )
    delay: _Delay | None = Field(None, description="Milliseconds until it may run.")
    attempts: Annotated[int, Field(strict=True, ge=1, le=MOST_ATTEMPTS)] | None = Field(
        None, description="How often it is tried. Default: once."
    )
    backoff: _Delay | BullBackoffOptions | None = Field(
        None, description="The wait between attempts; a number is a fixed one, in milliseconds."
    )
    jobId: Annotated[str, Field(strict=True), AfterValidator(_job_id)] | None = Field(  # noqa: N815
        None, description="Its id; where a job has it, nothing is added. Default: a number."
    )
    lifo: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether it goes before those that wait already."
    )
    removeOnComplete: Retention | None = Field(  # noqa: N815
        None,
        description="Whether it is removed when it has completed; or which others are, as a number "
        "of jobs to keep or as count and age.",
    )
    removeOnFail: Retention | None = Field(  # noqa: N815
        None, description="The same, when it has failed."
    )
    deduplication: BullDeduplicationOptions | None = None
    keepLogs: _Count | None = Field(  # noqa: N815
        None, description="Most lines of its log that are kept."
    )
    stackTraceLimit: _Count | None = Field(  # noqa: N815
        None, description="Most stack traces that are kept of it."
    )


class AddRequest(BaseModel):
    """A job for a queue of BullMQ."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE_REQUEST]})

    name: Annotated[
        str, Field(strict=True, min_length=1, max_length=LONGEST_NAME), AfterValidator(_printable)
    ] = Field(description="What kind of job, as workers know it.")
    data: Any = Field({}, description="Any JSON, passed on as it is.")
    opts: BullJobOptions = Field(default_factory=BullJobOptions)


class AddOutcome(str, Enum):
    """What became of a request to add a job."""

    ADDED = "added"
    #: The Idempotency-Key made this job before.
    REPLAYED = "replayed"
    #: There is a job of that `jobId`, and nothing was added.
    DUPLICATE = "duplicate"
    #: Another one stands for it, by its `deduplication`.
    DEDUPLICATED = "deduplicated"


class AddJobResponse(BaseModel):
    """The job is in the queue; watch it at `Location` + `/events`."""

    id: str = Field(examples=["1"])
    queue: str = Field(examples=["video-generation"])
    outcome: AddOutcome


class BullJobView(BaseModel):
    """A job as it stands, in Node's words."""

    id: str = Field(examples=["1"])
    queue: str = Field(examples=["video-generation"])
    name: str = Field(examples=["video-generation"])
    state: BullState
    data: Any
    opts: Any = Field(description="As it was added.")
    progress: Any = Field(description="A number from 0 to 100, or whatever its worker reports.")
    returnvalue: Any = None
    failedReason: str | None = None  # noqa: N815
    stacktrace: Any = Field(description="One entry for each attempt that failed.")
    attemptsMade: int  # noqa: N815
    attemptsStarted: int  # noqa: N815
    stalledCounter: int = Field(description="How often it lost its worker.")  # noqa: N815
    priority: int
    delay: int = Field(description="Milliseconds.")
    timestamp: int = Field(description="When it was added, Unix milliseconds.")
    processedOn: int | None = None  # noqa: N815
    finishedOn: int | None = None  # noqa: N815
    processedBy: str | None = Field(None, description="The worker's name.")  # noqa: N815
    parentKey: str | None = None  # noqa: N815


class RemovalOutcome(str, Enum):
    """What became of a request to remove a job."""

    REMOVED = BullAnswer.REMOVED.value
    #: It runs. A worker of Sluice will end it; others finish it.
    CANCELING = BullAnswer.CANCELING.value


class RemoveJobResponse(BaseModel):
    """The job is gone, or will be ended."""

    id: str = Field(examples=["1"])
    queue: str = Field(examples=["video-generation"])
    outcome: RemovalOutcome
