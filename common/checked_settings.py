"""A worker's settings, checked by a child process that is gone afterwards.

What checks them, pydantic, is a quarter of what an idle worker would hold in memory, and nobody
needs it any more once they are known. So a child reads and checks them, and hands back plain
values. Where it finds fault it says nothing: the worker, which will not start, reads them itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from common.derived_settings import DerivedKeys, DerivedLanes, DerivedOfWorker, own_name

if TYPE_CHECKING:
    from common.settings import WorkerSettings

_CHECKER = "pydantic"
#: What the child tells: values, secrets, and which of them are the name of the process itself.
_VALUES, _SECRETS, _OWN_NAMES = "values", "secrets", "own_names"


class Secret:
    """A secret that no log line shows; as pydantic's, whose part it plays."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        """The secret itself."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({'**********' if self._value else ''!r})"


class PlainSettings(DerivedLanes, DerivedKeys, DerivedOfWorker):
    """The values of a `WorkerSettings`, by the same names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} cannot be set: settings stay as they are")

    def model_copy(self, *, update: Mapping[str, Any]) -> PlainSettings:
        """The same with some values changed."""
        return PlainSettings({**self.__dict__, **update})


def worker_settings() -> WorkerSettings:
    """What the environment says; a SettingsError names each bad variable."""
    told = None if _is_carried_anyway() else _ask_child()
    if told is None:
        return _load()
    values = dict(told[_VALUES])
    values.update((name, Secret(value)) for name, value in told[_SECRETS].items())
    values.update(dict.fromkeys(told[_OWN_NAMES], own_name()))
    return cast("WorkerSettings", PlainSettings(values))


def _is_carried_anyway() -> bool:
    """Whether a child would spare nothing, or cannot be had: threads do not survive a fork."""
    return _CHECKER in sys.modules or threading.active_count() > 1 or not hasattr(os, "fork")


def _load() -> WorkerSettings:
    from common.settings import WorkerSettings, load

    return load(WorkerSettings)


def _ask_child() -> dict[str, Any] | None:
    """What it found; None where there is something wrong."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:  # no room for another process: do without
        os.close(reading)
        os.close(writing)
        return None
    if not child:
        _be_child(writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    with suppress(ChildProcessError):  # whoever started us may have had children taken away
        os.waitpid(child, 0)
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:  # it found fault, or was killed while it spoke
        return None
    return found


def _be_child(writing: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # leave quietly: the parent hears it too
        told = json.dumps(_plain(_load())).encode()
        with open(writing, "wb") as pipe:
            pipe.write(told)
        code = 0
    except Exception:  # the parent will meet it, and say so
        pass
    finally:
        os._exit(code)


def _plain(settings: WorkerSettings) -> dict[str, Any]:
    from pydantic import SecretStr

    values: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    own_names: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if field.default_factory is own_name and name not in settings.model_fields_set:
            own_names.append(name)  # the child's name would be another
        elif isinstance(value, SecretStr):
            secrets[name] = value.get_secret_value()
        else:
            values[name] = value
    return {_VALUES: values, _SECRETS: secrets, _OWN_NAMES: own_names}
