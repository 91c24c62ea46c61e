"""Random ids, drawn several times faster than by the uuid module."""

from __future__ import annotations

import os

from sluice.common.contracts.workflow.statuses import EXECUTION_ID_PREFIX
from sluice.common.redis.partitions import HOME_PARTITION, Partitions

_VARIANT = "89ab"
#: Odd, so that every number is reached; large, so that successive ids differ in most digits.
_STRIDE = 0x9E3779B1


def new_job_id(tail: str = "") -> str:
    """A version 4 UUID. `tail`: its last twelve digits, which identify the tenant."""
    digits = os.urandom(16).hex()
    if tail:
        digits = digits[:20] + tail
    variant = _VARIANT[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def new_job_id_in(partitions: Partitions, number: int, tail: str = "") -> str:
    """A job id that belongs to a partition.

    It is drawn once, and its first digits are changed until it fits: to draw again each time
    would cost several times as much.
    """
    job_id = new_job_id(tail)
    if partitions.count == 1:
        return job_id
    first, rest = int(job_id[:8], 16), job_id[8:]
    while partitions.number(job_id) != number:
        first = (first + _STRIDE) & 0xFFFFFFFF
        job_id = f"{first:08x}{rest}"
    return job_id


def new_home_job_id(partitions: Partitions, tail: str = "") -> str:
    """A job id in the home partition, which holds workflows, images and documents."""
    return new_job_id_in(partitions, HOME_PARTITION, tail)


def new_request_id() -> str:
    return os.urandom(16).hex()


def new_execution_id() -> str:
    """The id of one execution of a workflow step."""
    return EXECUTION_ID_PREFIX + os.urandom(4).hex()
