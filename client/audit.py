"""`sluice audit`: have the gateway check all jobs, and name those of which a promise was broken."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from client.place import local_url

DEFAULT_URL = "http://127.0.0.1:8080"
#: The gateway says something at least every second; silence this long means that it is gone.
SILENCE_S = 30.0
#: Progress is shown from here on, and on a terminal or in a log this often.
PROGRESS_AFTER_S = 1.0
TERMINAL_EVERY_S, LOG_EVERY_S = 0.2, 5.0

CLEAN, VIOLATIONS, UNAVAILABLE, MISCONFIGURED, INTERRUPTED = 0, 1, 69, 78, 130


class NoAudit(Exception):
    """The audit did not come to its end; the message says why and what to do."""

    def __init__(self, message: str, code: int = UNAVAILABLE) -> None:
        super().__init__(message)
        self.code = code


def register(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "audit",
        help="check that every job has exactly one end and none is lost",
        description="Exit code 0: all is well; 1: violations were found; 69: no audit was made.",
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("SLUICE_URL") or local_url(),
        help="the gateway (default: SLUICE_URL, else HOST and PORT as the gateway reads them)",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="audit straight on Redis, for where the gateway is down or may not read the queue",
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="the Redis for --local (default: REDIS_URL, or the one of this box)",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.set_defaults(run=audit)


def audit(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    progress = _Progress()
    try:
        local = arguments.local or arguments.redis is not None
        lines = _local_lines(arguments.redis) if local else _lines(_checked(arguments.url))
        if arguments.output == "json":
            return _as_json(lines, progress)
        return _as_table(lines, progress)
    except NoAudit as error:
        progress.clear()
        print(_printable(f"sluice: {error}"), file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        progress.clear()
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has seen enough; keep the interpreter from trying
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return VIOLATIONS


def _as_table(lines: Iterator[dict[str, Any]], progress: _Progress) -> int:
    shown = 0
    for line in lines:
        if line["type"] == "violation":
            progress.clear()
            if not shown:
                print(_row("JOB", "RULE", "DETAIL"))
            print(_row(line["job_id"], line["rule"], line["detail"]), flush=True)
            shown += 1
        elif line["type"] == "report":
            progress.clear()
            total = line["violations_total"]
            if total > shown:
                print(f"and {total - shown} more")
            print(_summary(line), flush=True)
            return VIOLATIONS if total else CLEAN
        elif line["type"] == "progress":
            progress.show(line)
    raise NoAudit("the gateway broke off the audit; try again")


def _as_json(lines: Iterator[dict[str, Any]], progress: _Progress) -> int:
    found = []
    for line in lines:
        kind = line.pop("type")
        if kind == "violation":
            found.append(line)
        elif kind == "report":
            progress.clear()
            print(json.dumps({**line, "violations": found}, indent=2), flush=True)
            return VIOLATIONS if line["violations_total"] else CLEAN
        elif kind == "progress":
            progress.show(line)
    raise NoAudit("the gateway broke off the audit; try again")


def _summary(report: dict[str, Any]) -> str:
    total = report["violations_total"]
    found = _count(total, "violation") if total else "no violation"
    seconds = report["duration_ms"] / 1000
    part = "" if report["complete"] else " (the queue is too long to be looked at whole)"
    return f"{_count(report['jobs_checked'], 'job')} checked in {seconds:.1f} s: {found}{part}"


def _row(job_id: str, rule: str, detail: str) -> str:
    return _printable(f"{job_id:36}  {rule:24}  {detail}")


def _printable(text: str) -> str:
    """One line, and nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class _Progress:
    """What a person sees while waiting: one changing line on a terminal, few lines in a log."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = TERMINAL_EVERY_S if self._terminal else LOG_EVERY_S
        self._next = time.monotonic() + PROGRESS_AFTER_S
        self._shown = False

    def show(self, line: dict[str, Any]) -> None:
        """Tell how far it is, unless that was told just now."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        text = f"{_count(line['jobs_checked'], 'job')} checked"
        if self._terminal:
            print(f"\r{text}", end="\x1b[K", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
        self._shown = self._terminal

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise NoAudit(
            f"{url!r} is no URL of a gateway; set --url or SLUICE_URL to one such as {DEFAULT_URL}",
            MISCONFIGURED,
        )
    return url.rstrip("/")


def _lines(url: str) -> Iterator[dict[str, Any]]:
    """What the gateway says, line by line; raises NoAudit where it cannot or will not."""
    key = os.environ.get("SLUICE_API_KEY", "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url}/v1/audit", data=b"", headers=headers, method="POST")
    # The gateway is near by; a proxy that is set for the internet would not find it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SILENCE_S) as answer:
            for raw in answer:
                line = json.loads(raw)
                if line["type"] == "failed":
                    raise NoAudit(f"the audit failed: {line['detail']}")
                yield line
    except urllib.error.HTTPError as error:
        raise NoAudit(f"{url} refused to audit: {_reason(error)}") from None
    except urllib.error.URLError as error:
        raise NoAudit(
            f"no gateway answers at {url} ({error.reason}); start one with `sluice up`, or name "
            "another with --url or SLUICE_URL"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise NoAudit(f"the connection to {url} broke ({error}); try again") from None
    except (ValueError, KeyError, TypeError):
        raise NoAudit(f"what answers at {url} is no gateway of Sluice; check the URL") from None


def _local_lines(redis: str | None) -> Iterator[dict[str, Any]]:
    """The same, without a gateway."""
    from ops import audit as local_audit

    def warn(text: str) -> None:
        print(_printable(f"sluice: {text}"), file=sys.stderr)

    try:
        yield from local_audit.lines(redis, warn)
    except local_audit.NoLocalAudit as error:
        raise NoAudit(str(error), error.code) from None


def _reason(error: urllib.error.HTTPError) -> str:
    """The problem's own words where there are any."""
    try:
        detail = str(json.loads(error.read(1 << 16))["detail"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        detail = str(error.reason)
    return f"{error.code} {detail}"
