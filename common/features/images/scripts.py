"""The image script: `lua/*.lua` between parts of the job script, rendered from the contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluice.common.contracts import images
from sluice.common.contracts.workflow import fields
from sluice.common.features.images.types import ImageAnswer
from sluice.common.jobs.scripts import JOB_CREATION_PARTS, JobScript, core_constants, read_core_lua
from sluice.common.redis.scripts import lua_enum_names, read_lua, render_lua

_LUA: Final = Path(__file__).with_name("lua")
#: Parts shared by the operations.
SHARED_PARTS: Final = ("image",)
_ENUMS: dict[str, type] = {
    "SHOWN": images.ImageStatusField,
    "STAGE": images.Stage,
    "RESULT": images.ImageResultField,
    "FAILURE": images.ImageFailureField,
    "RESULT_STATUS": images.ImageResultStatus,
    "DEAD_RESULT": images.DeadResultField,
    "IMAGE": images.ImageStatus,
    "RECORD": images.ImageRecordField,
    "ARGUMENT": images.ImageArgument,
    "PAYLOAD": fields.StepPayloadField,
    "IMG_OPERATION": images.ImageOperation,
    "FACT": images.ImageFact,
    "FOUND": ImageAnswer,
}
_KEYS: Final = images.ImageKeys()
_ANY: Final = "x"


def image_constants() -> dict[str, str]:
    """Every `$NAME` in the Lua of images, with its value."""
    names = {**core_constants(), **lua_enum_names(_ENUMS)}
    texts = {
        f"PROGRESS_{stage.name}": progress for stage, progress in images.STAGE_PROGRESS.items()
    }
    texts |= {
        "KEY_RECORD": _KEYS.record(""),
        "KEY_INDEX_OF": _KEYS.index(_ANY).removesuffix(_ANY),
        "IMAGE_TOOL": images.IMAGE_TOOL,
        "UPLOAD_GUARD_VALUE": images.UPLOAD_GUARD_VALUE,
        "STORAGE_PREFIX": images.STORAGE_PREFIX,
        "STORAGE_SUFFIX": images.STORAGE_SUFFIX,
        # Names in Lua cannot contain digits.
        "RESULT_DIGEST": images.ImageResultField.SHA256,
        "RECORD_SOURCE_DIGEST": images.ImageRecordField.SOURCE_SHA256,
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


def render_script() -> str:
    own = (*SHARED_PARTS, *(operation.value for operation in images.ImageOperation))
    parts = [read_core_lua(part) for part in JOB_CREATION_PARTS]
    parts += [read_lua(_LUA, part) for part in own]
    parts.append(read_core_lua("dispatch"))
    return render_lua("\n".join(parts), image_constants())


IMAGE_SCRIPT: Final = JobScript(render_script)
