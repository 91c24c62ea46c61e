"""Log lines that name the job and the request they are about."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

from common import codec
from common.contracts.jobs import JobField
from common.settings import CommonSettings

#: Set per request and per job, so that every line below them carries the name.
request_id: ContextVar[str] = ContextVar("request_id", default="")
job_id: ContextVar[str] = ContextVar("job_id", default="")


class _Formatter(logging.Formatter):
    def _names(self) -> dict[str, str]:
        names = {JobField.JOB_ID.value: job_id.get(), request_id.name: request_id.get()}
        return {name: value for name, value in names.items() if value}


class TextFormatter(_Formatter):
    """`time level logger: message key=value`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or several when there is a traceback."""
        names = "".join(f" {name}={value}" for name, value in self._names().items())
        return _encodable(super().format(record) + names)


class JsonFormatter(_Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, always."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._names(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return codec.dumps({name: _encodable(value) for name, value in line.items()}).decode()


def _encodable(text: str) -> str:
    """The same text, fit for UTF-8: a handler's error may hold half a character."""
    return text.encode(errors="replace").decode()


def configure(settings: CommonSettings) -> None:
    """Send all log lines to stderr in the chosen form."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
