"""The images' script: `lua/*.lua` between the core's parts, names rendered from contracts."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final

from common import scripts
from common.contracts import images, workflow
from common.images.types import ImageAnswer

_LUA: Final = Path(__file__).with_name("lua")
#: What the operations share.
SHARED: Final = ("image",)
_ENUMS: dict[str, type[Enum]] = {
    "SHOWN": images.StatusField,
    "STAGE": images.Stage,
    "RESULT": images.ResultField,
    "FAILURE": images.FailureField,
    "RESULT_STATUS": images.ResultStatus,
    "DEAD_RESULT": images.DeadResultField,
    "IMAGE": images.ImageStatus,
    "RECORD": images.RecordField,
    "ARGUMENT": images.ImageArgument,
    "PAYLOAD": workflow.StepPayload,
    "IMG_OPERATION": images.ImageOperation,
    "FACT": images.ImageFact,
    "FOUND": ImageAnswer,
}
_KEYS: Final = images.ImageKeys()
_ANY: Final = "x"


def image_names() -> dict[str, str]:
    """Every name in the images' Lua."""
    names = {**scripts.core_names(), **scripts.names_of(_ENUMS)}
    texts = {f"PROGRESS_{stage.name}": progress for stage, progress in images.PROGRESS.items()}
    texts |= {
        "KEY_RECORD": _KEYS.record(""),
        "KEY_INDEX_OF": _KEYS.index(_ANY).removesuffix(_ANY),
        "IMAGE_TOOL": images.IMAGE_TOOL,
        "UPLOAD_GUARD_VALUE": images.UPLOAD_GUARD_VALUE,
        "STORAGE_PREFIX": images.STORAGE_PREFIX,
        "STORAGE_SUFFIX": images.STORAGE_SUFFIX,
        # Names in Lua have no digits.
        "RESULT_DIGEST": images.ResultField.SHA256.value,
        "RECORD_SOURCE_DIGEST": images.RecordField.SOURCE_SHA256.value,
    }
    numbers = {
        "STATUS_TTL_S": images.STATUS_TTL_S,
        "RECORD_TTL_MAX_S": images.RECORD_TTL_MAX_S,
        "DELETED_TTL_S": images.DELETED_TTL_S,
        "RESULTS_KEPT": images.RESULTS_KEPT,
        "DEAD_RESULTS_KEPT": images.DEAD_RESULTS_KEPT,
    }
    names |= {name: f"'{text}'" for name, text in texts.items()}
    return names | {name: str(number) for name, number in numbers.items()}


def render() -> str:
    """The whole script."""
    own = (*SHARED, *(operation.value for operation in images.ImageOperation))
    parts = [scripts.lua_of(part) for part in scripts.FOR_FRONT_DOORS]
    parts += [(_LUA / f"{part}.lua").read_text() for part in own]
    parts.append(scripts.lua_of("dispatch"))
    return scripts.rendered("\n".join(parts), image_names())


IMAGES: Final = scripts.Script(render)
