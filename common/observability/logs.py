"""Log formats, fields for job and request, and masking of secrets."""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sluice.common import codec
from sluice.common.contracts.jobs import JobField, LeaseField
from sluice.common.observability import journal
from sluice.common.observability.journal import JournalHandler
from sluice.common.observability.log_throttle import ThrottlingHandler
from sluice.common.text import escape, escape_lines, shown_fields

if TYPE_CHECKING:
    from sluice.common.settings.base import CommonSettings

#: Most lines contain none of these, and cost only a few substring searches. In lower case, because
#: the searched text is too.
_TRIGGERS = ("sluice_", "bearer", "authorization", "password=", "://", "rd1", "up1")

_SECRETS = re.compile(
    r"""
    (?P<key> sluice_ [a-z0-9]{4,16} _ ) [a-z0-9]{12,}           # the id may be shown
    | (?P<option> [?&] (?:sentinel_|ssl_)? password= ) [^\s'"&]+
    | (?P<header> authorization ['"]? \s* [:=,] \s* (?:b?['"])? )
        (?: [a-z0-9-]+ [ ]+ ['"]? )? [^\s'",;)\]}]+
    | (?P<bearer> bearer [ ]+ ) [a-z0-9._~+/=-]{8,}
    | (?P<token> (?: rd | up ) 1 (?: ~ | %7e ) ) [a-z0-9._~%-]{43,}   # a read or upload token
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: Everything that may be one URL or several without a space in between, and the start of a
#: password. A single expression for both would take quadratic time: hours for a long text.
_URLS = re.compile(r"""://[^\s'"<>]+""")
_USER = re.compile(r"://[^/:@]*:")
MASK = "***"


def mask(text: str) -> str:
    """The text with secrets masked."""
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


#: Set per request and per job: every line logged in their context carries them.
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


#: A logger that always writes at INFO, and one that never writes below it: at DEBUG sse_starlette
#: logs what it sends, which contains payloads and results.
_ALWAYS, _NEVER_IN_DETAIL = "sluice.common.access.audit_log", "sse_starlette"


def begin_request(name: str) -> None:
    """Set the request id and clear the other fields, which the server may have kept from the
    previous request on the same connection."""
    request_id.set(name)
    for earlier in (job_id, tenant, trace_id):
        if earlier.get():
            earlier.set("")


def job_extra(job: str) -> dict[str, str]:
    """`extra=` for a line about a job other than the current one."""
    return {job_id.name: job}


def context_fields(record: logging.LogRecord) -> dict[str, str]:
    """Job, request and other context of a line, as far as it is known."""
    found = {name.name: str(value) for name in _NAMES if (value := name.get())}
    override = getattr(record, job_id.name, "")
    return {**found, job_id.name: str(override)} if override else found


def _is_about_job(record: logging.LogRecord) -> bool:
    return bool(job_id.get()) or hasattr(record, job_id.name)


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value`, for people. No text can forge a line or a value."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or several if there is a traceback."""
        return mask(_encodable(super().format(record) + shown_fields(context_fields(record))))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line without the traceback."""
        if not record.message.isprintable():
            record.message = escape(mask(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """The traceback, indented: the message of an exception may have several lines."""
        return escape_lines(mask(super().formatException(ei)))


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for machines."""

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
    """Message and traceback only, for the journal, where everything else is a field."""

    def format(self, record: logging.LogRecord) -> str:
        return mask(_encodable(super().format(record)))


def _encodable(text: str) -> str:
    """The text in valid UTF-8: an error message may contain lone surrogates."""
    return text.encode(errors="replace").decode()


def configure(settings: CommonSettings) -> None:
    """Send all log lines to stderr or to the journal, in the configured format."""
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
