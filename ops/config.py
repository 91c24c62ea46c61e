"""`sluice config`: every setting of gateway and worker, its value, and where that comes from."""

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

from common.errors import SettingsError
from common.settings import CommonSettings, GatewaySettings, WorkerSettings, load
from ops.doctor import settings_checks
from ops.doctor.box import Box
from ops.doctor.text import printable
from ops.redis_target import masked

GOOD, BAD, USAGE = 0, 1, 2
_PROCESSES: dict[str, type[CommonSettings]] = {
    "gateway": GatewaySettings,
    "worker": WorkerSettings,
}
_MASK = "***"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting of one process."""

    name: str
    process: str
    value: str
    #: Such as `default`, `environment`, or the file that says so.
    origin: str
    default: str
    description: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `explain` and `check` below `sluice config`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    explaining = actions.add_parser(
        "explain",
        help="what a setting is, and why",
        description="The value of each setting as a process started from this shell would have it; "
        "with --installed, as the units of this box have it. Secrets are masked.",
    )
    explaining.add_argument("names", nargs="*", metavar="KEY", help="default: all of them")
    explaining.add_argument("--changed", action="store_true", help="only what is not the default")
    _add_common(explaining)
    explaining.set_defaults(work=_explain)
    checking = actions.add_parser(
        "check",
        help="whether gateway and worker would start with them",
        description="Exit code 0: they would; 1: something is wrong, and it is named.",
    )
    _add_common(checking)
    checking.set_defaults(work=_check)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--process", choices=tuple(_PROCESSES), help="of this one only")
    parser.add_argument(
        "--installed", action="store_true", help="read /etc/sluice/*.env as the units do"
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "jsonl"), default="table")
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing but values, or faults")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code: int = arguments.work(arguments)
    return code


def _explain(arguments: argparse.Namespace) -> int:
    names = [name.upper() for name in arguments.names]
    known = {name.upper() for kind in _PROCESSES.values() for name in kind.model_fields}
    for name in names:
        if name not in known:
            meant = settings_checks.meant_by(name)
            hint = f"; perhaps {meant}" if meant else "; `sluice config explain` has them all"
            print(printable(f"sluice: there is no setting {name}{hint}"), file=sys.stderr)
            return USAGE
    found = [
        each
        for each in explained(arguments.process, arguments.installed)
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
    return GOOD


def _lines(found: list[Explained], *, at_length: bool) -> Iterator[str]:
    """A line each; with what it means, where somebody asked for it by name."""
    merged: dict[tuple[str, str, str], list[Explained]] = {}
    for each in found:
        merged.setdefault((each.name, each.value, each.origin), []).append(each)
    room = max((len(name) for name, _, _ in merged), default=0)
    for (name, value, origin), those in merged.items():
        whose = " and ".join(each.process for each in those)
        yield f"{name:{room}}  {value or '(empty)'}  [{origin}; {whose}]"
        if at_length:
            if origin != DEFAULT:
                yield f"{'':{room}}  default: {those[0].default or '(empty)'}"
            yield f"{'':{room}}  {those[0].description}"


def _check(arguments: argparse.Namespace) -> int:
    wrong = {}
    for process in _wanted(arguments.process):
        try:
            with _environment(_PROCESSES[process], arguments.installed):
                load(_PROCESSES[process])
        except SettingsError as error:
            wrong[process] = str(error)
    if arguments.output != "table":
        print(json.dumps({"ok": not wrong, "faults": wrong}))
    for process, fault in wrong.items():
        print(printable(f"sluice: {process}: {fault}"), file=sys.stderr)
    if not wrong and not arguments.quiet and arguments.output == "table":
        print("the settings are good")
    return BAD if wrong else GOOD


def explained(process: str | None = None, installed: bool = False) -> Iterator[Explained]:
    """Every setting of the processes, in the order in which they are written down."""
    for each in _wanted(process):
        kind = _PROCESSES[each]
        sources = list(_sources(kind, installed))
        for name, field in kind.model_fields.items():
            default = _default(field)
            value, origin = default, DEFAULT
            for source in sources:
                if given := source.variables.get(name.upper()):
                    value, origin = given, source.name
                    break
            yield Explained(
                name=name.upper(),
                process=each,
                value=_shown(field, value),
                origin=origin,
                default=_shown(field, default),
                description=field.description or "",
            )


def _wanted(process: str | None) -> tuple[str, ...]:
    return (process,) if process else tuple(_PROCESSES)


class _Source(NamedTuple):
    """Who may name a setting; names in capitals."""

    name: str
    variables: Mapping[str, str]


def _sources(kind: type[CommonSettings], installed: bool) -> Iterator[_Source]:
    """Whoever comes first is believed, as when settings are loaded."""
    if installed:
        box = Box(environ={})
        file = settings_checks.file_of(kind)
        yield _Source(file, _in_capitals(settings_checks.read_file(box, file)))
        return
    yield _Source("environment", _in_capitals(os.environ))
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if os.path.isdir(directory):
        yield _Source("credential", _credentials(Path(directory)))


def _in_capitals(variables: Mapping[str, str]) -> dict[str, str]:
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
    return settings_checks.installed_environment(Box(environ={}), kind)


def _default(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True)


def _shown(field: FieldInfo, value: object) -> str:
    """Without what is nobody's business."""
    if value is None:
        return "unset"
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    if "SecretStr" in str(field.annotation):
        return _MASK if text else ""
    return masked(text) if "://" in text and "@" in text else text
