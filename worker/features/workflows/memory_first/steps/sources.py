"""The step `sources`: reads texts, files and directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sluice.common import codec
from sluice.common.contracts.workflow.statuses import ErrorField, WorkflowError
from sluice.common.features.workflows.memory_first import (
    DIRECTORY,
    FILE,
    MOST_INLINE_BYTES,
    MOST_SOURCES,
    MOST_TEXT_BYTES,
    TEXT,
    TYPE,
)
from sluice.common.text import plural
from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.rag.errors import UnreadableDocument
from sluice.worker.features.rag.parsing.reader import (
    TEXT_MARKDOWN,
    TEXT_PLAIN,
    DocumentReader,
    ParsedDocument,
)
from sluice.worker.features.workflows.errors import StepError, error_entry
from sluice.worker.features.workflows.memory_first.sources import packed
from sluice.worker.features.workflows.memory_first.sources.decoding import (
    TextInfo,
    describe_text,
    guess_charset,
    to_plain_text,
)
from sluice.worker.features.workflows.memory_first.sources.files import (
    CSV,
    JSON,
    SourceRoot,
    UnusableFile,
)
from sluice.worker.features.workflows.memory_first.sources.packed import Source
from sluice.worker.features.workflows.output import MOST_ERRORS_BYTES, StepItem, StepOutput

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext

#: Failures quoted in a step's error, and characters of each.
_QUOTED: Final = 5
_QUOTED_CHARS: Final = 300
#: Bytes reserved within MOST_ERRORS_BYTES for the last entry, which counts the omitted ones.
_LAST_BYTES: Final = 256
_PREFIX: Final = "s"


@dataclass(frozen=True)
class RequestedSource:
    """One source of a request: a text, or a file by its path below the root."""

    name: str
    title: str = ""
    text: str | None = None
    path: str = ""
    charset: str = ""


class SourcesStep:
    """Reads the sources in the options."""

    def __init__(self, directory: str) -> None:
        self._root = SourceRoot(directory)
        self._reader = DocumentReader()

    async def __call__(self, context: StepContext) -> StepOutput:
        """Read every source; fails the step if more than `max_source_failures` fail."""
        options = context.options
        failures: list[dict[str, str]] = []
        requested = await self._expand(_parse_sources(options), failures)
        count = len(requested) + len(failures)
        found: list[Source] = []
        firsts: dict[str, str] = {}
        left_bytes = MOST_TEXT_BYTES
        for number, each in enumerate(requested, start=1):
            await context.progress(number - 1, len(requested))
            try:
                parsed, size = await self._read(context, each)
            except (UnusableFile, JobError) as error:
                if isinstance(error, (TransientError, StepError)):
                    raise
                failures.append(_failure(each.name, str(error)))
                continue
            about: TextInfo = await call_in_thread(describe_text, parsed.text)
            source = _source(each, parsed, size, about)
            if about.sha256 in firsts:
                found.append(replace(source, duplicate_of=firsts[about.sha256]))
                continue
            left_bytes -= about.bytes
            if left_bytes < 0:
                raise StepError(
                    WorkflowError.TOO_LARGE.value,
                    f"the sources have more than {MOST_TEXT_BYTES} bytes of text; use several jobs",
                )
            found.append(source)
            firsts[about.sha256] = f"{_PREFIX}_{len(found):03d}"
            raw: bytes = await call_in_thread(packed.pack_text, parsed.text)
            await context.put(packed.text_name(about.sha256), raw)
        _check(failures, count, options)
        await context.progress(len(requested), len(requested))
        return StepOutput(
            _summary(found),
            [StepItem(source.payload()) for source in found],
            errors=_limit_failures(failures),
        )

    async def _expand(
        self, listed: Sequence[Mapping[str, Any]], failures: list[dict[str, str]]
    ) -> list[RequestedSource]:
        """Expand directories into files, without duplicates."""
        requested: list[RequestedSource] = []
        paths: dict[str, None] = {}
        for number, each in enumerate(listed, start=1):
            kind, charset = str(each[TYPE]), str(each.get("charset", ""))
            title = str(each.get("title", ""))
            if kind == TEXT:
                name = title or f"text {number}"
                requested.append(RequestedSource(name, title, text=str(each["text"])))
                continue
            path = str(each["path"])
            try:
                below: str = await call_in_thread(self._root.relative, path)
                if kind == FILE:
                    found = [below]
                else:
                    found = await call_in_thread(self._root.files, below, str(each.get("glob", "")))
                    if not found:
                        raise UnusableFile(f"{path[:200]!r} contains no matching readable file")
            except UnusableFile as error:
                failures.append(_failure(path, str(error)))
                continue
            fresh = [file for file in found if file not in paths]
            paths.update(dict.fromkeys(fresh))
            requested += [
                RequestedSource(file, title, path=file, charset=charset) for file in fresh
            ]
        if len(requested) > MOST_SOURCES:
            raise StepError(
                WorkflowError.TOO_LARGE.value,
                f"{len(requested)} sources, {MOST_SOURCES} at most; narrow a glob, or use "
                "several jobs",
            )
        return requested

    async def _read(
        self, context: StepContext, requested: RequestedSource
    ) -> tuple[ParsedDocument, int]:
        """Parsed source, and its size in bytes."""
        if requested.text is not None:
            kind = TEXT_MARKDOWN if _looks_like_markdown(requested.text) else TEXT_PLAIN
            parsed = await self._reader.read(requested.text, kind, requested.title)
            return parsed, len(requested.text.encode())
        media_type = self._root.media_type(requested.path)
        raw: bytes = await call_in_thread(self._root.read, requested.path)
        if not raw:
            raise UnreadableDocument("the file is empty")
        charset = guess_charset(raw, media_type, requested.charset)
        title = requested.title
        if media_type in (TEXT_PLAIN, JSON, CSV):  # these formats have no title
            title = title or os.path.basename(requested.path)
        if media_type in (JSON, CSV):
            text = await context.compute(to_plain_text, raw, media_type, charset)
            return await self._reader.read(text, TEXT_PLAIN, title), len(raw)
        content_type = f"{media_type}; charset={charset}" if charset else media_type
        return await self._reader.read(raw, content_type, title), len(raw)


def _parse_sources(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sources of the options, validated. Raises StepError."""
    listed = options.get("sources") or []
    kinds = {TEXT: "text", FILE: "path", DIRECTORY: "path"}
    for each in listed:
        kind = each.get(TYPE) if isinstance(each, dict) else None
        if kind not in kinds or not isinstance(each.get(kinds[kind]), str):
            raise StepError(
                WorkflowError.INVALID.value,
                f"each source needs {TYPE!r}: {TEXT!r} with its 'text', {FILE!r} or {DIRECTORY!r} "
                "with its 'path'",
            )
    inline = sum(len(each["text"].encode(errors="replace")) for each in _of_type(TEXT, listed))
    if inline > MOST_INLINE_BYTES:
        raise StepError(
            WorkflowError.TOO_LARGE.value,
            f"the texts of the request have {inline} bytes, {MOST_INLINE_BYTES} at most; use files",
        )
    return list(listed)


def _of_type(kind: str, listed: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in listed if each[TYPE] == kind]


def _source(
    requested: RequestedSource, parsed: ParsedDocument, size: int, about: TextInfo
) -> Source:
    return Source(
        id="",
        title=parsed.title or requested.name,
        bytes=size,
        sha256=about.sha256,
        lang=about.lang,
        chars=about.chars,
        media_type=parsed.media_type,
        path=requested.path,
    )


def _looks_like_markdown(text: str) -> bool:
    """True if an untyped text looks like Markdown: it has a heading or a code block."""
    return text.startswith("# ") or any(mark in text for mark in ("\n# ", "\n## ", "\n```"))


def _failure(name: str, message: str) -> dict[str, str]:
    entry = error_entry(WorkflowError.SOURCE_FAILED.value, message[:_QUOTED_CHARS])
    return {
        **entry,
        ErrorField.SOURCE: name[:_QUOTED_CHARS].encode(errors="replace").decode(),
    }


def _check(failures: Sequence[Mapping[str, str]], count: int, options: Mapping[str, Any]) -> None:
    """Raise StepError if too many sources have failed."""
    most = int(options.get("max_source_failures", 0))
    if len(failures) <= most:
        return
    quoted = "; ".join(
        f"{each[ErrorField.SOURCE]}: {each[ErrorField.MESSAGE]}" for each in failures[:_QUOTED]
    )
    more = f"; and {len(failures) - _QUOTED} more" if len(failures) > _QUOTED else ""
    raise StepError(
        WorkflowError.SOURCE_FAILED.value,
        f"{len(failures)} of {plural(count, 'source')} cannot be read; "
        f"max_source_failures is {most}: {quoted}{more}",
    )


def _limit_failures(failures: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The failures that fit into a step's errors, and the number of omitted ones."""
    kept: list[Mapping[str, str]] = []
    left_bytes = MOST_ERRORS_BYTES - _LAST_BYTES
    for failure in failures:
        left_bytes -= len(codec.dumps(failure)) + 1
        if left_bytes < 0:
            more = len(failures) - len(kept)
            message = f"{more} more cannot be read (not listed)"
            return [*kept, error_entry(WorkflowError.SOURCE_FAILED.value, message)]
        kept.append(failure)
    return kept


def _summary(found: Sequence[Source]) -> str:
    duplicates = sum(source.duplicate_of is not None for source in found)
    chars = sum(source.chars for source in found if source.duplicate_of is None)
    summary = f"Read {plural(len(found), 'source')}, {plural(chars, 'character')}"
    return f"{summary}; {plural(duplicates, 'duplicate')}" if duplicates else summary
