"""`sluice config`: shows the settings of gateway and worker with their origin, and checks them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sluice.common.errors import SettingsError
from sluice.common.settings.base import CommonSettings, load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.ops.doctor.checks import settings
from sluice.ops.doctor.machine import Machine
from sluice.ops.redis_target import mask_password
from sluice.ops.terminal import add_format_option, printable

OK, INVALID, USAGE = 0, 1, 2
_PROCESSES: dict[str, type[CommonSettings]] = {
    "gateway": GatewaySettings,
    "worker": WorkerSettings,
}
_MASK = "***"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of one setting in one process."""

    name: str
    process: str
    value: str
    #: `default`, `environment`, `credential`, or the name of a file.
    origin: str
    default: str
    description: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice config explain
  sluice config explain LEASE_MS --process worker
  sluice config explain --changed --installed
  sluice config check --installed"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    explain = actions.add_parser(
        "explain",
        help="show settings and where their values come from",
        description="Show each setting with its value and origin, for a process started from this "
        "shell, or with --installed for the systemd units of this host. Secrets are masked.",
    )
    explain.add_argument("names", nargs="*", metavar="KEY", help="name of a setting (default: all)")
    explain.add_argument(
        "--changed", action="store_true", help="show only settings that differ from the default"
    )
    _add_common(explain)
    explain.set_defaults(work=_explain)
    check = actions.add_parser(
        "check",
        help="check whether gateway and worker accept the settings",
        description="Check whether gateway and worker accept the settings. Exit code 0: valid; 1: "
        "invalid, with the errors on stderr.",
    )
    _add_common(check)
    check.set_defaults(work=_check)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--process", choices=tuple(_PROCESSES), help="settings of this process only"
    )
    parser.add_argument(
        "--installed", action="store_true", help="read /etc/sluice/*.env, as the systemd units do"
    )
    add_format_option(parser, "table", "json", "jsonl")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only values, or errors")


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code: int = arguments.work(arguments)
    return code


def _explain(arguments: argparse.Namespace) -> int:
    names = [name.upper() for name in arguments.names]
    known = {name.upper() for kind in _PROCESSES.values() for name in kind.model_fields}
    for name in names:
        if name not in known:
            suggestion = settings.suggest_setting(name)
            hint = (
                f"did you mean {suggestion}?"
                if suggestion
                else "`sluice config explain` lists all settings"
            )
            print(printable(f"sluice: unknown setting {name}; {hint}"), file=sys.stderr)
            return USAGE
    found = [
        each
        for each in setting_values(arguments.process, arguments.installed)
        if (not names or each.name in names) and (not arguments.changed or each.origin != DEFAULT)
    ]
    if arguments.output == "json":
        print(json.dumps([asdict(each) for each in found], indent=2))
    elif arguments.output == "jsonl":
        for each in found:
            print(json.dumps(asdict(each)))
    elif arguments.quiet:
        for value in dict.fromkeys(each.value for each in found):
            print(printable(value))
    else:
        for line in _lines(found, at_length=bool(names)):
            print(printable(line))
    return OK


def _lines(found: list[SettingValue], *, at_length: bool) -> Iterator[str]:
    """A line for each setting; `at_length` adds its default and description."""
    merged: dict[tuple[str, str, str], list[SettingValue]] = {}
    for each in found:
        merged.setdefault((each.name, each.value, each.origin), []).append(each)
    width = max((len(name) for name, _, _ in merged), default=0)
    for (name, value, origin), same in merged.items():
        processes = " and ".join(each.process for each in same)
        yield f"{name:{width}}  {value or '(empty)'}  [{origin}; {processes}]"
        if at_length:
            if origin != DEFAULT:
                yield f"{'':{width}}  default: {same[0].default or '(empty)'}"
            yield f"{'':{width}}  {same[0].description}"


def _check(arguments: argparse.Namespace) -> int:
    faults = {}
    for process in _selected(arguments.process):
        try:
            with _environment(_PROCESSES[process], arguments.installed):
                load_settings(_PROCESSES[process])
        except SettingsError as error:
            faults[process] = str(error)
    if arguments.output != "table":
        print(json.dumps({"ok": not faults, "faults": faults}))
    for process, fault in faults.items():
        print(printable(f"sluice: {process}: {fault}"), file=sys.stderr)
    if not faults and not arguments.quiet and arguments.output == "table":
        print("the settings are valid")
    return INVALID if faults else OK


def setting_values(process: str | None = None, installed: bool = False) -> Iterator[SettingValue]:
    """All settings of the processes, in declaration order."""
    for each in _selected(process):
        kind = _PROCESSES[each]
        sources = list(_sources(kind, installed))
        for name, field in kind.model_fields.items():
            default = _default(field)
            value, origin = default, DEFAULT
            for source in sources:
                if given := source.variables.get(name.upper()):
                    value, origin = given, source.name
                    break
            yield SettingValue(
                name=name.upper(),
                process=each,
                value=_display(field, value),
                origin=origin,
                default=_display(field, default),
                description=field.description or "",
            )


def _selected(process: str | None) -> tuple[str, ...]:
    return (process,) if process else tuple(_PROCESSES)


class _Source(NamedTuple):
    """A source of variables; names are in upper case."""

    name: str
    variables: Mapping[str, str]


def _sources(kind: type[CommonSettings], installed: bool) -> Iterator[_Source]:
    """The sources in order of precedence, as in `load_settings`."""
    if installed:
        machine = Machine(environ={})
        file = settings.settings_file(kind)
        yield _Source(file, _upper_names(settings.read_file(machine, file)))
        return
    yield _Source("environment", _upper_names(os.environ))
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if os.path.isdir(directory):
        yield _Source("credential", _credentials(Path(directory)))


def _upper_names(variables: Mapping[str, str]) -> dict[str, str]:
    return {name.upper(): value for name, value in variables.items()}


def _credentials(directory: Path) -> dict[str, str]:
    found = {}
    for path in sorted(directory.iterdir()):
        try:
            found[path.name.upper()] = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _environment(kind: type[CommonSettings], installed: bool) -> AbstractContextManager[None]:
    if not installed:
        return nullcontext()
    return settings.installed_environment(Machine(environ={}), kind)


def _default(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True)


def _display(field: FieldInfo, value: object) -> str:
    """A value for output; secrets and passwords are masked."""
    if value is None:
        return "unset"
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    if "SecretStr" in str(field.annotation):
        return _MASK if text else ""
    return mask_password(text) if "://" in text and "@" in text else text
