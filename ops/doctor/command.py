"""`sluice doctor`: its command line, what it prints, and its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from common.addresses import is_multi_host
from common.errors import SettingsError
from common.settings import GatewaySettings, Settings, WorkerSettings, load
from ops import redis_target
from ops.doctor import report, settings_checks, units
from ops.doctor.box import Box
from ops.doctor.examination import examine
from ops.doctor.finding import Check, Finding, Health
from ops.doctor.registry import CHECKS
from ops.doctor.server import Server
from ops.doctor.text import printable

HEALTHY, UNHEALTHY, USAGE, INTERRUPTED = 0, 1, 2, 130
EXAMPLE = "http://127.0.0.1:8080"
_REDIS_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line said."""

    url: str | None = None
    redis: str | None = None
    as_json: bool = False
    quiet: bool = False
    #: Warnings count as failures.
    strict: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Looks at settings, Redis, gateway, queue, units and host. Exit code 0: nothing failed; 1: "
        "something did; 2: wrong use of the command."
    )
    parser.add_argument("--url", help="the gateway (default: SLUICE_URL, or where it listens here)")
    parser.add_argument(
        "--redis", metavar="URL", help="the Redis (default: REDIS_URL, or the one of this box)"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--json", dest="output", action="store_const", const="json", help="the same as -o json"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="tell only what is wrong")
    parser.add_argument("--strict", action="store_true", help="exit code 1 for warnings too")


def run(arguments: argparse.Namespace) -> int:
    """Examine this machine; returns the exit code."""
    wishes = Wishes(
        url=arguments.url,
        redis=arguments.redis,
        as_json=arguments.output == "json",
        quiet=arguments.quiet,
        strict=arguments.strict,
    )
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    box = look_around(wishes)
    if wrong := _wrong_use(wishes, box):
        print(f"sluice: {printable(wrong)}", file=sys.stderr)
        return USAGE
    progress = _Progress()
    try:
        return _tell(box, wishes, progress)
    except KeyboardInterrupt:
        progress.clear()
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has seen enough; keep the interpreter from trying
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNHEALTHY


def _wrong_use(wishes: Wishes, box: Box) -> str:
    """What is wrong with the command line; nothing, mostly."""
    if not _is_url(box.url, ("http", "https")):
        return f"{box.url!r} is no URL of a gateway; give --url or SLUICE_URL one such as {EXAMPLE}"
    several = is_multi_host(wishes.redis or "") and redis_target.is_url(wishes.redis or "")
    if wishes.redis and not several and not _is_url(wishes.redis, _REDIS_SCHEMES):
        return "--redis is no URL of Redis; give one such as redis://localhost:6379 or unix:///path"
    return ""


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.netloc or parts.path) and parts.port != 0
    except ValueError:
        return False


def look_around(wishes: Wishes, root: Path = Path("/")) -> Box:
    """This machine."""
    environ = dict(os.environ)
    target = redis_target.find(wishes.redis, environ, root)
    box = Box(root=root, environ=environ, redis=Server(target) if target else None)
    box.gateway_settings = _settings(box, GatewaySettings)
    box.worker_settings = _settings(box, WorkerSettings)
    box.url = (wishes.url or environ.get("SLUICE_URL") or _local_url(box)).rstrip("/")
    return box


def _local_url(box: Box) -> str:
    """Where the socket unit listens, or where a gateway started here would."""
    address = units.listening_at(box)
    return f"http://{address or f'127.0.0.1:{box.gateway_settings.port or 8080}'}"


def _settings(box: Box, kind: type[Settings]) -> Settings:
    """As the installed process would have them, or as one started here; else the defaults."""
    try:
        with settings_checks.installed_environment(box, kind):
            return load(kind)
    except SettingsError:
        defaults: Settings = kind.model_construct()  # type: ignore[assignment]
        return defaults


def _tell(box: Box, wishes: Wishes, progress: _Progress) -> int:
    found: list[Finding] = []

    def examined() -> Iterator[Finding]:
        for finding in examine(box, CHECKS, progress.show):
            progress.clear()
            found.append(finding)
            yield finding

    if wishes.as_json:
        for _ in examined():
            pass
    else:
        for line in report.lines(examined(), colour=_wants_colour(), quiet=wishes.quiet):
            print(line, flush=True)
    wrong = report.WRONG if wishes.strict else (Health.FAIL,)
    healthy = all(finding.status not in wrong for finding in found)
    if wishes.as_json:
        shown = box.redis.target.shown if box.redis else None
        print(report.as_json(found, healthy=healthy, redis=shown, url=box.url), flush=True)
    elif not (wishes.quiet and healthy):
        print(report.summary(found), flush=True)
    return HEALTHY if healthy else UNHEALTHY


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class _Progress:
    """What a person sees while a check takes its time."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, check: Check) -> None:
        """Tell which one."""
        if self._terminal:
            print(f"\r{check.name} …", end="\x1b[K", file=sys.stderr, flush=True)
            self._shown = True
        else:
            print(f"{check.name} takes its time", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
