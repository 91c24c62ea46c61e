"""The PyPI package whose scripts are BullMQ's protocol: found, checked, and asked for their text.

Of the rooms that feed queues this is the only module that knows its insides. It is imported when
somebody has asked for a queue, so that nobody else needs it installed.
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

from common.contracts.bullmq import PACKAGE, PACKAGE_VERSION
from common.errors import SettingsError

#: Scripts by what they do, and the files that have them: name, number of keys.
ADD_SCRIPTS = ("addStandardJob-9", "addDelayedJob-6", "addPrioritizedJob-9")
STATE_SCRIPT = "getStateV2-8"
REMOVE_SCRIPT = "removeJob-2"
REQUIRED_SCRIPTS = (*ADD_SCRIPTS, STATE_SCRIPT, REMOVE_SCRIPT)
#: A function of a script: begins and ends at the edge, as nothing within it does.
_FUNCTION = re.compile(r"^local function .*?^end\n", re.MULTILINE | re.DOTALL)
_FIX = f"install it with `pip install 'sluice[{PACKAGE}]'`, or leave out"


class ScriptCall(NamedTuple):
    """A call of one of the package's scripts, packed by the package."""

    script: str
    keys: list[str]
    args: list[str | bytes | int]


def require_package(setting: str, scripts: Sequence[str] = REQUIRED_SCRIPTS) -> None:
    """Raise unless the package is there, is the one we know, and has the scripts that we wrap.

    `setting`: which one asks for it, for the message.
    """
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise SettingsError(
            f"{setting} needs the package {PACKAGE}=={PACKAGE_VERSION}; {_FIX} {setting}"
        ) from None
    if version != PACKAGE_VERSION:
        raise SettingsError(
            f"{setting} needs {PACKAGE}=={PACKAGE_VERSION}, whose scripts are known to agree with "
            f"Node's; {version} is installed; {_FIX} {setting}"
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
    """A script's functions, and what it does with them."""
    source = script_source(name)
    ends = [found.end() for found in _FUNCTION.finditer(source)]
    return (source[: ends[-1]], source[ends[-1] :]) if ends else ("", source)


def reserved_names() -> frozenset[str]:
    """What no job may be called, since keys of the queue itself are."""
    names: dict[str, str] = _module("queue_keys").QueueKeys("p").getKeys("q")
    return frozenset(names) | {"metrics", "dn"}


def build_add_call(
    prefix: str, queue: str, name: str, data: bytes, opts: dict[str, Any], job_id: str
) -> ScriptCall:
    """The script for a job with these options, and its arguments as the package packs them."""
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
    call.args[1] = data  # as the client wrote it; the package would escape whatever is not ASCII
    return call


def _run(coroutine: Any) -> None:
    """To its end, which nothing in it waits for."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise asyncio.InvalidStateError("the package waits for something")


def _module(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


def _script_path(script: str) -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    directory = Path(str(spec.origin)).parent if spec is not None else Path()
    return directory / "commands" / f"{script}.lua"
