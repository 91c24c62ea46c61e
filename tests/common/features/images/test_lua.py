"""Conventions of the images' Lua files, and the names of the contract."""

from __future__ import annotations

import datetime
import random
import re
from pathlib import Path

import pytest

from common.contracts import images, jobs, values_of
from common.contracts.images import ImageKeys, ImageOperation, image_key_patterns
from common.features.images import scripts
from tests.common.features.images.kit import FAILURE_FIELDS, RESULT_FIELDS
from tests.support.backends import Backend

LUA = sorted((Path(scripts.__file__).with_name("lua")).rglob("*.lua"))
#: Lua's limit of local variables per function; the whole script is one function.
MOST_LOCALS = 200
PREFIXES = ("job:", "jobs:", "idempotency", "image:", "images/", "image.")


def code_of(path: Path) -> str:
    return re.sub(r"--.*", "", path.read_text())


def header_of(path: Path) -> str:
    source = path.read_text()
    return source[: re.search(r"^[^-\n]", source, re.MULTILINE).start()]  # type: ignore[union-attr]


def test_each_operation_has_a_file_and_each_file_a_use() -> None:
    operations = {operation.value for operation in ImageOperation}
    assert {path.stem for path in LUA} == operations | set(scripts.SHARED_PARTS)


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_names_come_from_the_contracts(path: Path) -> None:
    names = scripts.image_constants()
    for name in re.findall(r"\$([A-Z_]+)", path.read_text()):
        assert name in names, f"{path.name}: ${name}"
    written = set(re.findall(r"'([^'\n]*)'", code_of(path)))
    enums: tuple[type, ...] = (
        images.ImageStatusField,
        images.Stage,
        images.ImageResultField,
        images.ImageFailureField,
    )
    enums += (images.ImageRecordField, images.ImageStatus, jobs.JobField, jobs.LeaseField)
    assert not written & {value for enum in enums for value in values_of(enum)}
    assert not [word for word in written if word.startswith(PREFIXES)]


@pytest.mark.parametrize("operation", list(ImageOperation), ids=lambda one: one.value)
def test_every_operation_documents_keys_arguments_and_answers(
    operation: ImageOperation,
) -> None:
    [path] = [path for path in LUA if path.stem == operation.value]
    header = header_of(path)
    assert header.startswith(f"-- {operation.name}: ")
    assert re.search(r"^-- keys\s+1 ", header, re.MULTILINE)
    assert re.search(r"^-- args\s+(1 |none)", header, re.MULTILINE)
    _, _, explained = header.partition("-- answers")
    given = {word.lower() for word in re.findall(r"\$FOUND_([A-Z]+)", code_of(path))}
    assert given <= set(re.findall(r"[a-z]+", explained))


def test_contract_values_need_no_quoting_in_lua() -> None:
    for name, literal in scripts.image_constants().items():
        assert re.fullmatch(r"'[\w.:/-]+'|\d+", literal), name


def test_the_script_is_built_from_the_files_within_lua_limits() -> None:
    source = scripts.IMAGE_SCRIPT.source
    assert scripts.render_script() == source
    assert not re.search(r"\$[A-Z]", re.sub(r"--.*", "", source))
    assert len(re.findall(r"^local ", source, re.MULTILINE)) < MOST_LOCALS - 20


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


def test_every_key_is_among_the_patterns() -> None:
    keys = ImageKeys()
    starts = tuple(pattern.rstrip("*") for pattern in image_key_patterns())
    own = (keys.record("x"), keys.status("x"), keys.upload("x"), keys.deleted("x"), keys.results)
    shared = (keys.dead_results, keys.inflight, keys.index(), keys.index("t"), keys.reconciler)
    for key in (*own, *shared, keys.idempotency("k"), keys.idempotency("k", "t")):
        assert key.startswith(starts)


def test_keys_of_images_tenants_and_purposes_do_not_collide() -> None:
    keys = ImageKeys()
    made = [keys.record("x"), keys.status("x"), keys.upload("x"), keys.deleted("x"), keys.results]
    made += [keys.dead_results, keys.inflight, keys.index(), keys.index("t"), keys.index("u")]
    made += [keys.reconciler, keys.idempotency("a"), keys.idempotency("a", "t")]
    assert len(set(made)) == len(made)


async def test_the_script_formats_dates_correctly(backend: Backend) -> None:
    """Seconds in all kinds of years, months and days, as the script formats them."""
    shared = (Path(scripts.__file__).with_name("lua") / "image.lua").read_text()
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
    said = await backend.client().eval(source, 0, *moments)  # type: ignore[misc]
    for moment, text in zip(moments, said, strict=True):
        expected = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
        assert text.decode() == expected.strftime("%Y-%m-%dT%H:%M:%SZ")
