"""Checks of settings in the environment and in the installer's files."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping

from sluice.common.errors import SettingsError
from sluice.common.settings.base import CommonSettings, load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.common.text import plural
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, ok, warn
from sluice.ops.doctor.machine import Machine

#: Minimum similarity to a setting's name, and minimum length, of a suspected misspelling.
SIMILARITY = 0.87
MIN_LENGTH = 7
#: Directory of the installer. The file of a worker instance is read after the common one.
DIRECTORY = "/etc/sluice"
GATEWAY_FILE, WORKER_FILE = f"{DIRECTORY}/gateway.env", f"{DIRECTORY}/worker.env"
#: Variables of Sluice that are not settings of gateway or worker.
OTHER_VARIABLES = frozenset({"SLUICE_URL", "SLUICE_API_KEY", "CREDENTIALS_DIRECTORY"})
KNOWN = sorted(
    name.upper() for name in {**GatewaySettings.model_fields, **WorkerSettings.model_fields}
)


@check(
    "settings.environment",
    "the environment variables are valid settings for gateway and worker",
    "correct the variable in question, or `unset` it",
)
def environment(machine: Machine) -> Finding:
    """Reads the settings like a process started from this shell."""
    return _check_variables("the environment", machine.environ, "unset or correct it in this shell")


@check(
    "settings.files",
    "the installer's settings files are valid",
    "correct the line in question in /etc/sluice/*.env, then `sudo systemctl restart redis-gateway "
    "redis-echo-worker`",
)
def files(machine: Machine) -> list[Finding]:
    """Reads the settings files like the systemd units."""
    found = []
    for kind, names in _files_by_process(machine):
        merged = {key: value for name in names for key, value in read_file(machine, name).items()}
        fix = f"correct it in {names[-1]}, then sudo systemctl restart 'redis-*'"
        found.append(_check_variables(" and ".join(names), merged, fix, kind))
    if not found:
        raise CheckSkipped("no settings files in /etc/sluice, or readable by root only")
    return found


@check(
    "settings.spelling",
    "no variable looks like a misspelt setting",
    "rename the variable as suggested",
)
def spelling(machine: Machine) -> Finding:
    names = dict.fromkeys(machine.environ, "the environment")
    for file in setting_files(machine):
        names.update(dict.fromkeys(read_file(machine, file), file))
    slips = [
        f"{name} in {where}: did you mean {meant}?"
        for name, where in sorted(names.items())
        if (meant := suggest_setting(name)) is not None
    ]
    if not slips:
        return ok("no misspelt variables")
    return warn(
        "; ".join(slips),
        f"{plural(len(slips), 'variable')} without effect",
        "rename as suggested, or remove the variable",
    )


def suggest_setting(name: str) -> str | None:
    """The setting that `name` is probably a misspelling of; None if there is none."""
    upper = name.upper()
    if upper in KNOWN or upper in OTHER_VARIABLES or len(name) < MIN_LENGTH:
        return None
    long_enough = [known for known in KNOWN if len(known) >= MIN_LENGTH - 1]
    close = difflib.get_close_matches(upper, long_enough, n=1, cutoff=SIMILARITY)
    return close[0] if close else None


def setting_files(machine: Machine) -> list[str]:
    directory = machine.path(DIRECTORY)
    return sorted(f"{DIRECTORY}/{path.name}" for path in directory.glob("*.env"))


def _files_by_process(machine: Machine) -> list[tuple[type[CommonSettings], list[str]]]:
    """The files that each process reads."""
    there = [name for name in setting_files(machine) if machine.read(name) is not None]
    common = [name for name in there if name == WORKER_FILE]
    own = [name for name in there if name.startswith(f"{DIRECTORY}/worker-")]
    groups: list[tuple[type[CommonSettings], list[str]]] = []
    if GATEWAY_FILE in there:
        groups.append((GatewaySettings, [GATEWAY_FILE]))
    if common and not own:
        groups.append((WorkerSettings, common))
    return groups + [(WorkerSettings, [*common, name]) for name in own]


def installed_environment(
    machine: Machine, kind: type[CommonSettings]
) -> contextlib.AbstractContextManager[None]:
    """The environment of an installed process. Variables of this shell take precedence."""
    return _as_environment({**read_file(machine, settings_file(kind)), **machine.environ})


def settings_file(kind: type[CommonSettings]) -> str:
    """The settings file of an installed process."""
    return GATEWAY_FILE if kind is GatewaySettings else WORKER_FILE


def read_file(machine: Machine, name: str) -> dict[str, str]:
    """The variables of a file in the format of systemd's EnvironmentFile."""
    found = {}
    for line in (machine.read(name) or "").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            found[key.removeprefix("export ").strip()] = value.strip().strip("'\"")
    return found


def _check_variables(
    what: str,
    variables: Mapping[str, str],
    fix: str,
    *kinds: type[CommonSettings],
) -> Finding:
    wrong: list[str] = []
    with _as_environment(variables):
        for kind in kinds or (GatewaySettings, WorkerSettings):
            try:
                load_settings(kind)
            except SettingsError as error:
                wrong += [line for line in str(error).split("; ") if line not in wrong]
    given = sum(name.upper() in KNOWN for name in variables)
    if not wrong:
        return ok(f"{what}: {plural(given, 'setting')}, all valid")
    return fail(f"{what}: {'; '.join(wrong)}", "the process would exit with code 78", fix)


@contextlib.contextmanager
def _as_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process, from which settings are read."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


CHECKS = (environment, files, spelling)
