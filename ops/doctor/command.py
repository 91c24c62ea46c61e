"""The command `sluice doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from sluice.common.errors import SettingsError
from sluice.common.redis.addresses import is_multi_host
from sluice.common.settings.base import Settings, load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.ops import redis_target
from sluice.ops.doctor import report
from sluice.ops.doctor.checks import CHECKS, settings, systemd
from sluice.ops.doctor.finding import Check, Finding, Health
from sluice.ops.doctor.machine import Machine
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.doctor.runner import run_checks
from sluice.ops.terminal import add_format_option, discard_stdout, printable

HEALTHY, UNHEALTHY, USAGE, INTERRUPTED = 0, 1, 2, 130
EXAMPLE_URL = "http://127.0.0.1:8080"
_REDIS_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    url: str | None = None
    redis: str | None = None
    as_json: bool = False
    quiet: bool = False
    #: Treat warnings as failures.
    strict: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check settings, Redis, gateway, queue, systemd units and host, and print how to fix each "
        "problem. Nothing is changed. Exit code 0: no failures; 1: failures; 2: invalid arguments."
    )
    parser.epilog = """Examples:
  sudo sluice doctor
  sluice doctor -q --strict
  sluice doctor --url http://10.0.0.5:8080 -o json"""
    parser.add_argument("--url", help="URL of the gateway (default: SLUICE_URL, or the local one)")
    parser.add_argument(
        "--redis", metavar="URL", help="URL of Redis (default: REDIS_URL, or that of this host)"
    )
    add_format_option(parser, "table", "json")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only warnings and failures"
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 1 for warnings, too")


def run(arguments: argparse.Namespace) -> int:
    options = Options(
        url=arguments.url,
        redis=arguments.redis,
        as_json=arguments.output == "json",
        quiet=arguments.quiet,
        strict=arguments.strict,
    )
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    machine = inspect_machine(options)
    if error := _usage_error(options, machine):
        print(f"sluice: {printable(error)}", file=sys.stderr)
        return USAGE
    progress = _Progress()
    try:
        return _print_findings(machine, options, progress)
    except KeyboardInterrupt:
        progress.clear()
        return INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return UNHEALTHY


def _usage_error(options: Options, machine: Machine) -> str:
    """The error in the options; empty if they are valid."""
    if not _is_url(machine.url, ("http", "https")):
        return (
            f"{machine.url!r} is not a gateway URL; set --url or SLUICE_URL to one such as "
            f"{EXAMPLE_URL}"
        )
    is_several = is_multi_host(options.redis or "") and redis_target.is_url(options.redis or "")
    if options.redis and not is_several and not _is_url(options.redis, _REDIS_SCHEMES):
        return "--redis is not a Redis URL; use one such as redis://localhost:6379 or unix:///path"
    return ""


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.netloc or parts.path) and parts.port != 0
    except ValueError:
        return False


def inspect_machine(options: Options, root: Path = Path("/")) -> Machine:
    """Find the settings, Redis and gateway of this machine."""
    environ = dict(os.environ)
    target = redis_target.find_target(options.redis, environ, root)
    machine = Machine(root=root, environ=environ, redis=RedisServer(target) if target else None)
    machine = replace(
        machine,
        gateway_settings=_settings(machine, GatewaySettings),
        worker_settings=_settings(machine, WorkerSettings),
    )
    url = options.url or environ.get("SLUICE_URL") or _local_url(machine)
    return replace(machine, url=url.rstrip("/"))


def _local_url(machine: Machine) -> str:
    """The address of the socket unit, or else the default address of a gateway."""
    address = systemd.listen_address(machine)
    return f"http://{address or f'127.0.0.1:{machine.gateway_settings.port or 8080}'}"


def _settings(machine: Machine, kind: type[Settings]) -> Settings:
    """The settings of the installed process, or of a local one; defaults if they are invalid."""
    try:
        with settings.installed_environment(machine, kind):
            return load_settings(kind)
    except SettingsError:
        defaults: Settings = kind.model_construct()  # type: ignore[assignment]
        return defaults


def _print_findings(machine: Machine, options: Options, progress: _Progress) -> int:
    found: list[Finding] = []

    def collected() -> Iterator[Finding]:
        for finding in run_checks(machine, CHECKS, progress.show):
            progress.clear()
            found.append(finding)
            yield finding

    if options.as_json:
        for _ in collected():
            pass
    else:
        for line in report.report_lines(collected(), color=_supports_color(), quiet=options.quiet):
            print(line, flush=True)
    problems = report.PROBLEMS if options.strict else (Health.FAIL,)
    healthy = all(finding.status not in problems for finding in found)
    if options.as_json:
        redis = machine.redis.target.masked_url if machine.redis else None
        print(report.as_json(found, healthy=healthy, redis=redis, url=machine.url), flush=True)
    elif not (options.quiet and healthy):
        print(report.summary(found), flush=True)
    return HEALTHY if healthy else UNHEALTHY


def _supports_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class _Progress:
    """Prints the names of slow checks on stderr."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, check: Check) -> None:
        if self._terminal:
            print(f"\r{check.name} …", end="\x1b[K", file=sys.stderr, flush=True)
            self._shown = True
        else:
            print(f"{check.name} is taking long", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
