"""A request on its way to becoming a job, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from common.access_limits import Limits


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated request, ready to be accepted."""

    job_id: str
    task: str
    payload: bytes
    ttl_s: int
    idempotency_key: str | None = None
    idempotency_ttl_s: int = 0
    fingerprint: str = ""
    #: The request's own limit of attempts, and what else it wishes (`common.options`).
    max_attempts: int | None = None
    options: bytes = b""
    #: Milliseconds until it is due, and how many such jobs there may be.
    delay_ms: int = 0
    schedule_limit: int = 0
    #: Whose Idempotency-Keys these are, and what the caller may ask for at most.
    tenant: str = ""
    limits: Limits | None = None
    #: Empty for the normal one; also said in `options`, for when it is due or made again.
    lane: str = ""
    #: Whether it may get another id, and so go to another partition.
    anywhere: bool = False

    def __post_init__(self) -> None:
        if self.idempotency_key is not None and not self.fingerprint:
            raise ValueError("an idempotency key needs the request's fingerprint")


class Accepted(NamedTuple):
    """The job behind a request; `replayed` when an earlier request had made it."""

    job_id: str
    replayed: bool
