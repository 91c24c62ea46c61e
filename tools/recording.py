"""Records a terminal session with Sluice as an animated SVG: `make recording`.

The commands are executed with a separate Sluice, on PORT (8080); the picture shows what they
printed, and when. Its background is fixed, so that it is readable on light and dark pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "JOB=$(curl -s localhost:{port}/v1/jobs -H 'Content-Type: application/json' \\\n"
    """  -d '{{"task":"chat","payload":{{"text":"hello"}}}}' | cut -d '"' -f 4)""",
    "curl -sN localhost:{port}/v1/jobs/$JOB/events",
    "curl -s localhost:{port}/v1/jobs/$JOB",
)
#: The echo worker takes this long, so that the events do not arrive all at once.
ECHO_DELAY_MS = 1500
READY = "Stop: Ctrl-C"
TIMEOUT_S = 60.0

COLUMNS = 100
CELL_PX, LINE_PX, MARGIN_PX = 7.8, 19, 16
#: Pauses of the animation: before each command, and before it starts again.
TYPING_S, END_S = 1.2, 8.0
_STYLE = """
rect{fill:#161b22;stroke:#30363d}
text{font:13px ui-monospace,"DejaVu Sans Mono",Menlo,monospace;fill:#c9d1d9;white-space:pre}
.command{fill:#fff;font-weight:600}.event{fill:#7ee2a8}
"""


class Line(NamedTuple):
    """A line on the screen, and when it appears, in seconds."""

    at_s: float
    text: str
    kind: str = ""


def record(port: int) -> list[Line]:
    """Execute the commands in one shell."""
    lines: list[Line] = []
    clock_s = 0.0
    with _sluice(port):
        shell = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert shell.stdin is not None
        assert shell.stdout is not None
        for template in COMMANDS:
            command = template.format(port=port)
            clock_s += TYPING_S
            for at, text in enumerate(command.splitlines()):
                lines.append(Line(clock_s, ("> " if at else "$ ") + text, "command"))
            started_s = time.monotonic()
            shell.stdin.write(f"{command}\nprintf '\\nEND %d\\n' $?\n")
            output: list[Line] = []
            for text in shell.stdout:
                if text.startswith("END "):
                    assert text == "END 0\n", f"{command}: {output}"
                    break
                kind = "event" if text.startswith("event:") else ""
                output.append(Line(clock_s + time.monotonic() - started_s, text.rstrip("\n"), kind))
            while output and not output[-1].text:
                output.pop()
            lines += output
            clock_s += time.monotonic() - started_s
        shell.stdin.close()
        shell.wait(TIMEOUT_S)
    return lines


@contextmanager
def _sluice(port: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "PORT": str(port),
            "SLUICE_DATA_DIR": directory,
            "ECHO_DELAY_MS": str(ECHO_DELAY_MS),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice", "up", "--worker", "echo"],
            cwd=ROOT, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            if not any(READY in line for line in process.stdout):
                raise SystemExit(f"Sluice did not start on port {port}; set PORT to a free port")
            yield
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def wrapped(lines: list[Line]) -> list[Line]:
    """Long lines continue in the next row, as in a terminal."""
    return [
        line._replace(text=line.text[start : start + COLUMNS])
        for line in lines
        for start in range(0, max(1, len(line.text)), COLUMNS)
    ]


def render(lines: list[Line]) -> str:
    """The SVG. Without animation, or if the reader prefers none, all lines are visible."""
    rows = wrapped(lines)
    total_s = rows[-1].at_s + END_S
    width = round(COLUMNS * CELL_PX + 2 * MARGIN_PX)
    height = len(rows) * LINE_PX + 2 * MARGIN_PX
    frames, texts = [], []
    for at, row in enumerate(rows):
        if not row.text:
            continue
        percent = row.at_s / total_s * 100
        steps = f"0%,{percent:.2f}%{{opacity:0}}{percent + 0.01:.2f}%{{opacity:1}}"
        frames.append(
            f"@keyframes l{at}{{{steps}}}.l{at}{{animation:l{at} {total_s:.2f}s infinite}}"
        )
        # The length of the text makes its position independent of the font.
        texts.append(
            f'<text class="l{at} {row.kind}" x="{MARGIN_PX}" y="{MARGIN_PX + at * LINE_PX + 14}" '
            f'textLength="{len(row.text) * CELL_PX:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{escape(row.text)}</text>'
        )
    motion = "\n".join(frames)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
role="img" aria-labelledby="t">
<title id="t">Terminal: a job is submitted, its events arrive, its result is read</title>
<style>{_STYLE}@media (prefers-reduced-motion:no-preference){{
{motion}
}}</style>
<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>
{chr(10).join(texts)}
</svg>
"""


def main(path: Path) -> int:
    path.write_text(render(record(int(os.environ.get("PORT", "8080")))))
    print(f"{path} {path.stat().st_size // 1024} KB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
