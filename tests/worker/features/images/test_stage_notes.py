"""Stages that a process reports, which may be under the control of its image."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

from sluice.common.contracts.images import Stage
from sluice.worker.features.images.processor import StageWriter


async def test_only_later_stages_of_the_process_are_written() -> None:
    writer = StageWriter(Mock(), Mock(), Mock())
    written: list[Stage] = []

    async def write(stage: Stage) -> None:
        written.append(stage)

    writer.write = write  # type: ignore[method-assign]
    notes: list[Any] = [
        *("validating", "uploading", "done", "failed", "hostile", None, 7, ["decoding"], {}),
        *("decoding", "validating", "decoding", "encoding", "processing"),
    ]
    for note in notes:
        writer.note(note)
    writer.close()
    await asyncio.wait_for(writer.run(), 10)
    assert written == [Stage.VALIDATING, Stage.DECODING, Stage.ENCODING]
    assert writer.last_stage is Stage.ENCODING
