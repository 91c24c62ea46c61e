"""Child process that parses one document from standard input, then exits.

A malicious file that keeps a parser busy for ever or exhausts memory can only be stopped from
outside. So this process has limited time and memory, cannot write files and has no secrets.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Final

from sluice.worker.execution.process_pool.confine import limit_resources
from sluice.worker.features.rag.parsing.html import ExtractedText, extract_html
from sluice.worker.features.rag.parsing.pdf import UnreadablePdf, extract_pdf

#: Limits for one document: CPU time, wall-clock time and memory.
CPU_S: Final = 20
WALL_S: Final = 60
MEMORY_BYTES: Final = 512 * 1024 * 1024

HTML, PDF = "html", "pdf"
#: Members of the JSON output.
TEXT, TITLE, FAULT = "text", "title", "fault"
_FAULT_CHARS: Final = 200
#: Control characters except tab and newline.
_CONTROLS: Final = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)])


def main(kind: str, most_chars: str) -> None:
    """Read a document and write its text and title, or the problem, as JSON."""
    _limit()
    try:
        raw = sys.stdin.buffer.read()
        text, title = (
            extract_html(raw.decode()) if kind == HTML else extract_pdf(raw, int(most_chars))
        )
        found = ExtractedText(_clean(text), " ".join(_clean(title).split()))
        answer = {TEXT: found.text, TITLE: found.title}
    except UnreadablePdf as error:
        answer = {FAULT: str(error)}
    except MemoryError:
        answer = {FAULT: "reading it takes too much memory; send a smaller one"}
    except RecursionError:
        answer = {FAULT: "it is nested too deeply"}
    except Exception as error:
        details = f"{type(error).__name__}: {error}"[:_FAULT_CHARS]
        answer = {FAULT: f"it is not readable as {kind.upper()} ({details})"}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def _limit() -> None:
    signal.alarm(WALL_S)  # the default action ends the process if the worker is gone
    limit_resources(MEMORY_BYTES, RLIMIT_CPU=CPU_S, RLIMIT_FSIZE=0)


def _clean(text: str) -> str:
    """Remove control characters and unpaired surrogates."""
    return text.encode("utf-8", "replace").decode().translate(_CONTROLS)
