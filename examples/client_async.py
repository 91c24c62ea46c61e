"""The asyncio client: many concurrent jobs, and one that is canceled.

`python examples/client_async.py`, with SLUICE_URL and SLUICE_API_KEY as in `client_sync.py`.
"""

from __future__ import annotations

import asyncio
import sys

from sluice import AsyncSluice, JobCanceled, SluiceError


async def ask(sluice: AsyncSluice, text: str) -> str:
    """Submits one job and returns its streamed answer."""
    job = await sluice.submit("chat", {"text": text})
    pieces = [event.text async for event in job.stream() if event.text]
    return f"{text}: {' '.join(pieces)}"


async def main(texts: list[str]) -> None:
    """Runs all jobs concurrently, then cancels another one."""
    async with AsyncSluice() as sluice:
        for line in await asyncio.gather(*(ask(sluice, text) for text in texts)):
            print(line)
        # Scheduled in an hour, and canceled before that.
        late = await sluice.submit("chat", {"text": "never mind"}, delay_s=3600)
        await late.cancel("changed my mind")
        try:
            await late.result()
        except JobCanceled:
            print(f"{late.id} was canceled")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:] or ["one", "two", "three"]))
    except SluiceError as error:
        print(f"{error}", file=sys.stderr)
        sys.exit(error.exit_code)
