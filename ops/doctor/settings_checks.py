"""Settings: does what the environment says mean something?"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping

from common.errors import SettingsError
from common.settings import CommonSettings, GatewaySettings, WorkerSettings, load
from ops.doctor.box import Box
from ops.doctor.finding import Finding, Unable, check, fail, ok, warn
from ops.doctor.text import plural

#: How alike two names must be, and how long a name, to be taken for a slip of the pen.
ALIKE = 0.87
SHORTEST = 7
#: Where the installer puts settings; an instance's own are read after the workers' common ones.
DIRECTORY = "/etc/sluice"
GATEWAY_FILE, WORKER_FILE = f"{DIRECTORY}/gateway.env", f"{DIRECTORY}/worker.env"
#: Variables that are not settings of a process and look like one.
NOT_OURS = frozenset({"SLUICE_URL", "SLUICE_API_KEY", "CREDENTIALS_DIRECTORY"})
KNOWN = sorted(
    name.upper() for name in {**GatewaySettings.model_fields, **WorkerSettings.model_fields}
)


@check(
    "settings.environment",
    "the variables of this environment make settings that gateway and worker accept",
    "correct the named variable, or `unset` it",
)
def environment(box: Box) -> Finding:
    """What a process started from here would say."""
    return _judge("the environment", box.environ, "unset or correct it in this shell")


@check(
    "settings.files",
    "the installer's files of settings are accepted",
    "correct the named line in /etc/sluice/*.env, then `sudo systemctl restart redis-gateway "
    "redis-echo-worker`",
)
def files(box: Box) -> list[Finding]:
    """What the units would be given."""
    found = []
    for kind, names in _groups(box):
        merged = {key: value for name in names for key, value in read_file(box, name).items()}
        fix = f"correct it in {names[-1]}, then sudo systemctl restart 'redis-*'"
        found.append(_judge(" and ".join(names), merged, fix, kind))
    if not found:
        raise Unable("there is none in /etc/sluice, or only root may read them")
    return found


@check(
    "settings.spelling",
    "no variable is nearly named like a setting",
    "rename it as suggested",
)
def spelling(box: Box) -> Finding:
    """A misspelt setting is silently ignored."""
    names = dict.fromkeys(box.environ, "the environment")
    for file in setting_files(box):
        names.update(dict.fromkeys(read_file(box, file), file))
    slips = [
        f"{name} in {where} is perhaps {meant}"
        for name, where in sorted(names.items())
        if (meant := meant_by(name)) is not None
    ]
    if not slips:
        return ok("no variable is misspelt")
    return warn(
        "; ".join(slips),
        f"{plural(len(slips), 'variable')} that nobody reads",
        "rename as suggested, or remove",
    )


def meant_by(name: str) -> str | None:
    """The setting that a name was probably meant to be; None for a setting, or for neither."""
    upper = name.upper()
    if upper in KNOWN or upper in NOT_OURS or len(name) < SHORTEST:
        return None
    long_enough = [known for known in KNOWN if len(known) >= SHORTEST - 1]
    close = difflib.get_close_matches(upper, long_enough, n=1, cutoff=ALIKE)
    return close[0] if close else None


def setting_files(box: Box) -> list[str]:
    """The installer's files of settings."""
    directory = box.path(DIRECTORY)
    return sorted(f"{DIRECTORY}/{path.name}" for path in directory.glob("*.env"))


def _groups(box: Box) -> list[tuple[type[CommonSettings], list[str]]]:
    """Which files a process reads, for each process."""
    there = [name for name in setting_files(box) if box.read(name) is not None]
    common = [name for name in there if name == WORKER_FILE]
    own = [name for name in there if name.startswith(f"{DIRECTORY}/worker-")]
    groups: list[tuple[type[CommonSettings], list[str]]] = []
    if GATEWAY_FILE in there:
        groups.append((GatewaySettings, [GATEWAY_FILE]))
    if common and not own:
        groups.append((WorkerSettings, common))
    return groups + [(WorkerSettings, [*common, name]) for name in own]


def installed_environment(
    box: Box, kind: type[CommonSettings]
) -> contextlib.AbstractContextManager[None]:
    """What an installed process is given, and what is set here: that wins."""
    return _as_environment({**read_file(box, file_of(kind)), **box.environ})


def file_of(kind: type[CommonSettings]) -> str:
    """The installer's file of settings for a kind of process."""
    return GATEWAY_FILE if kind is GatewaySettings else WORKER_FILE


def read_file(box: Box, name: str) -> dict[str, str]:
    """The variables of a file in the form of systemd's EnvironmentFile."""
    found = {}
    for line in (box.read(name) or "").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            found[key.removeprefix("export ").strip()] = value.strip().strip("'\"")
    return found


def _judge(
    what: str,
    variables: Mapping[str, str],
    fix: str,
    *kinds: type[CommonSettings],
) -> Finding:
    wrong: list[str] = []
    with _as_environment(variables):
        for kind in kinds or (GatewaySettings, WorkerSettings):
            try:
                load(kind)
            except SettingsError as error:
                wrong += [line for line in str(error).split("; ") if line not in wrong]
    given = sum(name.upper() in KNOWN for name in variables)
    if not wrong:
        return ok(f"{what}: {plural(given, 'setting')} given, all of them accepted")
    return fail(f"{what}: {'; '.join(wrong)}", "the process would end with exit code 78", fix)


@contextlib.contextmanager
def _as_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Settings are read from the process's own environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


CHECKS = (environment, files, spelling)
