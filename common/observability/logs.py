"""Log lines that name the job and the request they are about."""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

from common import codec
from common.contracts.jobs import JobField, LeaseField
from common.observability import journal
from common.observability.journal import JournalHandler
from common.observability.log_throttle import ThrottlingHandler

if TYPE_CHECKING:
    from common.settings.base import CommonSettings

#: Most lines hold none of these and cost a few searches for a substring, no more. All of them in
#: lower case, as what they are looked for in.
_TRIGGERS = ("sluice_", "bearer", "authorization", "password=", "://")

_SECRETS = re.compile(
    r"""
    (?P<key> sluice_ [a-z0-9]{4,16} _ ) [a-z0-9]{12,}           # the id may be shown
    | (?P<option> [?&] (?:sentinel_)? password= ) [^\s'"&]+
    | (?P<header> authorization ['"]? \s* [:=,] \s* (?:b?['"])? )
        (?: [a-z0-9-]+ [ ]+ ['"]? )? [^\s'",;)\]}]+
    | (?P<bearer> bearer [ ]+ ) [a-z0-9._~+/=-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: All that may be a URL, or several without a space between them, and where a password may begin.
#: One expression for both would try every beginning with every end: hours for a long text.
_URLS = re.compile(r"""://[^\s'"<>]+""")
_USER = re.compile(r"://[^/:@]*:")
MASK = "***"


def mask(text: str) -> str:
    """The same text, secrets blotted out."""
    lower = text.lower()
    for trigger in _TRIGGERS:
        if trigger in lower:
            return _URLS.sub(_mask_password, _SECRETS.sub(_mask_match, text))
    return text


def _mask_match(found: re.Match[str]) -> str:
    return f"{found[found.lastgroup or 0]}{MASK}"


def _mask_password(found: re.Match[str]) -> str:
    urls = found[0]
    end = urls.rfind("@")
    begin = _USER.search(urls, 0, max(end - 1, 0))
    return urls if begin is None else f"{urls[: begin.end()]}{MASK}{urls[end:]}"


#: Set per request and per job, so that every line below them carries the name.
job_id: ContextVar[str] = ContextVar("job_id", default="")
request_id: ContextVar[str] = ContextVar("request_id", default="")
task: ContextVar[str] = ContextVar(JobField.TASK, default="")
attempt: ContextVar[int] = ContextVar(LeaseField.ATTEMPT, default=0)
tenant: ContextVar[str] = ContextVar("tenant", default="")
trace_id: ContextVar[str] = ContextVar("trace_id", default="")

_NAMES: tuple[ContextVar[str] | ContextVar[int], ...] = (
    job_id,
    request_id,
    task,
    attempt,
    tenant,
    trace_id,
)


#: Log lines that are written at every level, and those that no level brings: this library tells
#: at debug what it sends, which is what handlers made of payloads.
_ALWAYS, _NEVER_IN_DETAIL = "common.access.audit_log", "sse_starlette"


def begin_request(name: str) -> None:
    """From here on lines are about this request, and not about the one that was served before it
    on the same connection, whose names a server may hand on."""
    request_id.set(name)
    for earlier in (job_id, tenant, trace_id):
        if earlier.get():
            earlier.set("")


def job_extra(job: str) -> dict[str, str]:
    """`extra=` of a line about a job other than the one at hand."""
    return {job_id.name: job}


def context_fields(record: logging.LogRecord) -> dict[str, str]:
    """What a line is about, as far as it is known."""
    found = {name.name: str(value) for name in _NAMES if (value := name.get())}
    told = getattr(record, job_id.name, "")
    return {**found, job_id.name: str(told)} if told else found


def _is_about_job(record: logging.LogRecord) -> bool:
    return bool(job_id.get()) or hasattr(record, job_id.name)


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or several when there is a traceback."""
        about_what = "".join(f" {name}={value}" for name, value in context_fields(record).items())
        return mask(_encodable(super().format(record) + about_what))


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **context_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return codec.dumps({name: mask(_encodable(text)) for name, text in line.items()}).decode()


class MessageFormatter(logging.Formatter):
    """The message and its traceback: all the rest has fields of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return mask(_encodable(super().format(record)))


def _encodable(text: str) -> str:
    """The same text, fit for UTF-8: a handler's error may hold half a character."""
    return text.encode(errors="replace").decode()


def configure(settings: CommonSettings) -> None:
    """Send all log lines to stderr or to the journal, in the chosen form."""
    handler = ThrottlingHandler(_handler(settings), is_about_job=_is_about_job)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in (_ALWAYS, _NEVER_IN_DETAIL):
        logging.getLogger(name).setLevel(logging.INFO)


def _handler(settings: CommonSettings) -> logging.Handler:
    form = settings.log_format
    if form == "auto":
        form = "journal" if journal.stderr_is_journal() else "text"
    if form == "journal":
        return _to_journal(settings)
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def _to_journal(settings: CommonSettings) -> logging.Handler:
    consumer = getattr(settings, "consumer", "")
    always = {"consumer": consumer} if consumer else {}

    def fields(record: logging.LogRecord) -> dict[str, str]:
        return {name: mask(value) for name, value in {**context_fields(record), **always}.items()}

    handler = JournalHandler(settings.service, fields)
    handler.setFormatter(MessageFormatter())
    return handler
