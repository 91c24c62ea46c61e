"""The PyPI package with the scripts of the BullMQ protocol: checks it and reads its scripts.

In common and gateway, only this module knows the internals of the package. It is imported only if
a BullMQ queue is configured, so that the package is optional.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from sluice.common.contracts.bullmq import PACKAGE, PACKAGE_VERSION
from sluice.common.errors import SettingsError

#: File names of the scripts: name and number of keys.
ADD_SCRIPTS = ("addStandardJob-9", "addDelayedJob-6", "addPrioritizedJob-9")
STATE_SCRIPT = "getStateV2-8"
REMOVE_SCRIPT = "removeJob-2"
REQUIRED_SCRIPTS = (*ADD_SCRIPTS, STATE_SCRIPT, REMOVE_SCRIPT)
#: A function in a script: only its first and last line start at column 0.
_FUNCTION = re.compile(r"^local function .*?^end\n", re.MULTILINE | re.DOTALL)
_FIX = f"install it with `pip install 'sluice[{PACKAGE}]'`, or leave out"


class ScriptCall(NamedTuple):
    """A call of one of the package's scripts, with arguments packed by the package."""

    script: str
    keys: list[str]
    args: list[str | bytes | int]


def require_package(setting: str, scripts: Sequence[str] = REQUIRED_SCRIPTS) -> None:
    """Raise SettingsError unless the package is installed in the known version with these scripts.

    `setting` is the setting that needs it, for the message.
    """
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise SettingsError(
            f"{setting} needs the package {PACKAGE}=={PACKAGE_VERSION}; {_FIX} {setting}"
        ) from None
    if version != PACKAGE_VERSION:
        raise SettingsError(
            f"{setting} needs {PACKAGE}=={PACKAGE_VERSION}, whose scripts are known to be "
            f"compatible with Node's; {version} is installed; {_FIX} {setting}"
        )
    gone = [name for name in scripts if not _script_path(name).is_file()]
    if gone:
        raise SettingsError(
            f"{setting} needs the scripts {', '.join(gone)} of {PACKAGE}, which are not in its "
            f"directory; {_FIX} {setting}"
        )


def script_source(script: str) -> str:
    return _script_path(script).read_text()


def split_script(name: str) -> tuple[str, str]:
    """The functions of a script, and its body."""
    source = script_source(name)
    ends = [found.end() for found in _FUNCTION.finditer(source)]
    return (source[: ends[-1]], source[ends[-1] :]) if ends else ("", source)


def reserved_names() -> frozenset[str]:
    """Ids that no job may have, because they are keys of the queue itself."""
    names: dict[str, str] = _module("queue_keys").QueueKeys("p").getKeys("q")
    return frozenset(names) | {"metrics", "dn"}


def build_add_call(
    prefix: str, queue: str, name: str, data: bytes, opts: dict[str, Any], job_id: str
) -> ScriptCall:
    """The script that adds a job with these options, and its arguments."""
    recorded: list[ScriptCall] = []

    def record(script: str) -> Any:
        async def command(keys: list[str], args: list[Any], client: None = None) -> str:
            recorded.append(ScriptCall(script, keys, args))
            return ""

        return command

    commands = {script.partition("-")[0]: record(script) for script in ADD_SCRIPTS}
    scripts = _module("scripts").Scripts(
        prefix, queue, SimpleNamespace(conn=None, commands=commands)
    )
    nowhere = SimpleNamespace(backend=None, qualifiedName=f"{prefix}:{queue}")
    job = _module("job").Job(nowhere, name, None, opts, job_id or None)
    _run(scripts.addJob(job))
    [call] = recorded
    call.args[1] = data  # unchanged; the package would escape non-ASCII characters
    return call


def _run(coroutine: Any) -> None:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise asyncio.InvalidStateError("the package's coroutine suspended unexpectedly")


def _module(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


def _script_path(script: str) -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    directory = Path(str(spec.origin)).parent if spec is not None else Path()
    return directory / "commands" / f"{script}.lua"
