"""Conventions of the Lua files of features, and the names of the images' contract."""

from __future__ import annotations

import datetime
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluice.common.contracts import images, jobs, values_of
from sluice.common.contracts.images import ImageKeys, ImageOperation, image_key_patterns
from sluice.common.contracts.workflow.keys import WorkflowKeys, workflow_key_patterns
from sluice.common.contracts.workflow.operations import WorkflowOperation
from sluice.common.features.images import scripts as image_scripts
from sluice.common.features.workflows import scripts as workflow_scripts
from tests.support.servers import Backend
from tests.support.store.images import FAILURE_FIELDS, RESULT_FIELDS


class Feature(NamedTuple):
    """The scripts of a feature, and names that its Lua files take from the contracts."""

    scripts: Any
    operations: Any
    constants: dict[str, str]
    source: str
    fields: tuple[type, ...]
    prefixes: tuple[str, ...]

    @property
    def lua(self) -> list[Path]:
        return sorted(Path(self.scripts.__file__).with_name("lua").rglob("*.lua"))


FEATURES = [
    Feature(
        image_scripts,
        ImageOperation,
        image_scripts.image_constants(),
        image_scripts.IMAGE_SCRIPT.source,
        (
            *(images.ImageStatusField, images.Stage, images.ImageResultField),
            *(images.ImageFailureField, images.ImageRecordField, images.ImageStatus),
            *(jobs.JobField, jobs.LeaseField),
        ),
        ("job:", "jobs:", "idempotency", "image:", "images/", "image."),
    ),
    Feature(
        workflow_scripts,
        WorkflowOperation,
        workflow_scripts.workflow_constants(),
        workflow_scripts.WORKFLOW_SCRIPT.source,
        (jobs.JobField, jobs.LeaseField, jobs.EventField),
        ("job:", "jobs:", "idempotency", "workflow:", "rag:", "rag."),
    ),
]
each = pytest.mark.parametrize("feature", FEATURES, ids=["images", "workflows"])
#: Lua's limit of local variables per function; the whole script is one function.
MOST_LOCALS = 200


def code_of(path: Path) -> str:
    return re.sub(r"--.*", "", path.read_text())


@each
def test_each_operation_has_a_file_and_each_file_a_use(feature: Feature) -> None:
    operations = {operation.value for operation in feature.operations}
    assert {path.stem for path in feature.lua} == operations | set(feature.scripts.SHARED_PARTS)


@each
def test_names_come_from_the_contracts(feature: Feature) -> None:
    for path in feature.lua:
        for name in re.findall(r"\$([A-Z_]+)", path.read_text()):
            assert name in feature.constants, f"{path.name}: ${name}"
        written = set(re.findall(r"'([^'\n]*)'", code_of(path)))
        names = {value for enum in feature.fields for value in values_of(enum)}
        assert not written & names, path.name
        assert not [word for word in written if word.startswith(feature.prefixes)], path.name


@each
def test_every_operation_documents_keys_arguments_and_answers(feature: Feature) -> None:
    for operation in feature.operations:
        [path] = [path for path in feature.lua if path.stem == operation.value]
        source = path.read_text()
        header = source[: re.search(r"^[^-\n]", source, re.MULTILINE).start()]
        assert header.startswith(f"-- {operation.name}: ")
        assert re.search(r"^-- keys\s+(1 |none)", header, re.MULTILINE), path.name
        assert re.search(r"^-- args\s+(1 |none)", header, re.MULTILINE), path.name
        _, _, explained = header.partition("-- answers")
        given = {word.lower() for word in re.findall(r"\$FOUND_([A-Z]+)", code_of(path))}
        if re.search(r"\brefuse\(", code_of(path)):
            given.add("refused")
        assert given <= set(re.findall(r"[a-z]+", explained)), path.name


@each
def test_the_script_is_built_from_the_files_within_lua_limits(feature: Feature) -> None:
    for name, literal in feature.constants.items():
        assert re.fullmatch(r"'[\w.:/ -]+'|\d+", literal), name  # needs no quoting in Lua
    assert feature.scripts.render_script() == feature.source
    assert not re.search(r"\$[A-Z]", re.sub(r"--.*", "", feature.source))
    assert len(re.findall(r"^local ", feature.source, re.MULTILINE)) < MOST_LOCALS - 20


def test_every_key_is_among_the_patterns() -> None:
    keys = WorkflowKeys()
    starts = tuple(pattern.rstrip("*") for pattern in workflow_key_patterns())
    for key in (keys.job("x"), keys.index("t"), keys.running, keys.answer("s", "k", "t")):
        assert key.startswith(starts)


def test_keys_of_images_are_distinct_and_among_the_patterns() -> None:
    keys = ImageKeys()
    starts = tuple(pattern.rstrip("*") for pattern in image_key_patterns())
    made = [keys.record("x"), keys.status("x"), keys.upload("x"), keys.deleted("x"), keys.results]
    made += [keys.dead_results, keys.inflight, keys.index(), keys.index("t"), keys.index("u")]
    made += [keys.reconciler, keys.idempotency("a"), keys.idempotency("a", "t")]
    assert len(set(made)) == len(made)
    for key in made:
        assert key.startswith(starts)


def test_the_contract_has_the_specified_names() -> None:
    assert list(values_of(images.ImageStatusField)) == [
        "stage", "progress", "updated_at", "error",
    ]  # fmt: skip
    assert [stage.value for stage in images.Stage] == [
        "queued", "validating", "decoding", "processing", "encoding", "uploading", "done", "failed",
    ]  # fmt: skip
    assert list(values_of(images.ImageResultField)) == RESULT_FIELDS
    assert list(values_of(images.ImageFailureField)) == FAILURE_FIELDS
    keys = ImageKeys()
    assert (keys.status("x"), keys.upload("x")) == ("image:status:x", "image:upload:x")
    assert (keys.results, images.RESULT_GROUP) == ("image:result", "api-workers")
    assert (images.UPLOAD_GUARD_VALUE, images.STATUS_TTL_S) == ("claimed", 3600)
    assert images.RESULTS_KEPT == 1000
    assert images.storage_key("abc-123") == "images/abc-123.webp"


async def test_the_script_formats_dates_correctly(backend: Backend) -> None:
    """Seconds in all kinds of years, months and days, as the script formats them."""
    shared = (Path(image_scripts.__file__).with_name("lua") / "image.lua").read_text()
    function = shared[shared.index("local function rfc3339") : shared.index("local now_rfc3339")]
    source = function + (
        "local texts = {} for at, seconds in ipairs(ARGV) do "
        "texts[at] = rfc3339(tonumber(seconds)) end return texts"
    )
    rng = random.Random(7)
    moments = [0, 86_399, 86_400, 951_782_400, 951_868_800, 1_709_164_800, 4_107_542_399]
    moments += [rng.randrange(0, 7_258_118_400) for _ in range(300)]
    for year in (1970, 1999, 2000, 2024, 2026, 2100):
        for month in range(1, 13):
            first = datetime.datetime(year, month, 1, tzinfo=datetime.timezone.utc)
            moments += [int(first.timestamp()), max(int(first.timestamp()) - 1, 0)]
    said = await backend.client().eval(source, 0, *moments)
    for moment, text in zip(moments, said, strict=True):
        expected = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
        assert text.decode() == expected.strftime("%Y-%m-%dT%H:%M:%SZ")
