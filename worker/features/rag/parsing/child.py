"""What the process that takes documents apart does: one document from standard input, then the end.

A parser that a hostile file keeps busy for ever, or lets take all memory, can be stopped only from
outside. So this process has little time, little memory, no files of its own, and no secrets.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Final

from worker.execution.process_pool.confine import limit_resources
from worker.features.rag.parsing.html import ExtractedText, extract_html
from worker.features.rag.parsing.pdf import UnreadablePdf, extract_pdf

#: Processor time, time by the clock and memory for one document.
CPU_S: Final = 20
WALL_S: Final = 60
MEMORY_BYTES: Final = 512 * 1024 * 1024

HTML, PDF = "html", "pdf"
#: Members of the answer.
TEXT, TITLE, FAULT = "text", "title", "fault"
_FAULT_CHARS: Final = 200
#: Control characters, but for tab and new line.
_CONTROLS: Final = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)])


def main(kind: str, most_chars: str) -> None:
    """Read a document, write its text and title, or what is wrong with it, as JSON."""
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
        answer = {FAULT: "it takes too much memory to read; send a smaller one"}
    except RecursionError:
        answer = {FAULT: "it is nested too deep"}
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:_FAULT_CHARS]
        answer = {FAULT: f"it is no {kind.upper()} that can be read ({words})"}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def _limit() -> None:
    signal.alarm(WALL_S)  # its usual action ends the process, should nobody be there to do it
    limit_resources(MEMORY_BYTES, RLIMIT_CPU=CPU_S, RLIMIT_FSIZE=0)


def _clean(text: str) -> str:
    """What JSON and people can read: no control characters, no halves of characters."""
    return text.encode("utf-8", "replace").decode().translate(_CONTROLS)
