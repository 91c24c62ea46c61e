"""What the core job of an image is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from common.contracts.images import ImageArgument
from worker.errors import InvalidPayload

#: As both are in the name of a file.
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")


class ImageArguments(NamedTuple):
    """Which upload of which image."""

    image_id: str
    upload_id: str

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> ImageArguments:
        """From a payload's `args`; raises InvalidPayload for what only a stranger writes."""
        found = []
        for argument in (ImageArgument.IMAGE_ID, ImageArgument.UPLOAD_ID):
            value = args.get(argument.value)
            if not isinstance(value, str) or not _ID.fullmatch(value):
                raise InvalidPayload(f"{argument.value} is none")
            found.append(value)
        return cls(*found)
