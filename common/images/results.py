"""What an entry of the result stream must look like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from common.codec import JOB_ID
from common.contracts.images import FailureField, ResultField, ResultStatus
from common.images.storage_keys import checked_key

#: Longest value that is kept, in characters: an entry of ours has no longer ones.
MOST_CHARS: Final = 10_000
_FIELDS: Final = {
    ResultStatus.PROCESSED.value: {field.value for field in ResultField},
    ResultStatus.FAILED.value: {field.value for field in FailureField},
}
_NUMBERS: Final = (
    ResultField.FILE_SIZE,
    ResultField.ORIGINAL_WIDTH,
    ResultField.ORIGINAL_HEIGHT,
    ResultField.PROCESSED_WIDTH,
    ResultField.PROCESSED_HEIGHT,
)
_NUMBER: Final = re.compile(r"\A[0-9]{1,15}\Z")
_SHA256: Final = re.compile(r"\A[0-9a-f]{64}\Z")


def flaw_of(fields: Mapping[str, str]) -> str:
    """Why an entry is no result; empty where it is one."""
    wanted = _FIELDS.get(fields.get(ResultField.STATUS.value, ""))
    if wanted is None:
        return "its status is none"
    if fields.keys() != wanted:
        return "its fields are not those of a result"
    if not JOB_ID.match(fields[ResultField.IMAGE_ID.value]):
        return "its image id is none"
    if any(len(value) > MOST_CHARS for value in fields.values()):
        return "a value is too long"
    if ResultField.SHA256.value not in fields:
        return ""
    for field in _NUMBERS:
        if not _NUMBER.match(fields[field.value]):
            return f"{field.value} is no number"
    if not _SHA256.match(fields[ResultField.SHA256.value]):
        return f"{ResultField.SHA256.value} is none"
    try:
        checked_key(fields[ResultField.STORAGE_KEY.value])
    except ValueError:
        return f"{ResultField.STORAGE_KEY.value} is no name of an object"
    return ""
