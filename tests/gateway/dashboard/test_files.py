"""Static files of the dashboard: content, ETags, content security policy, and no other files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.dashboard.static_files import STATIC, FileCache
from tests.gateway.conftest import Gateway, Make, check_problem
from tests.gateway.http.openapi.test_docs_page import Page
from tests.gateway.http.test_headers import check_strict

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Limit for the uncompressed size of all files that the overview loads.
MOST_BYTES = 150_000


@pytest.mark.parametrize("target", ["/ui", "/ui/", "/ui/jobs", "/ui/jobs/a%2Fb", "/ui/no/such"])
async def test_every_page_serves_the_same_html(fake_gateway: Gateway, target: str) -> None:
    answer = await fake_gateway.client.get(target)
    assert answer.status == 200
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert answer.body == (STATIC / "index.html").read_bytes()
    check_strict(answer, POLICY)
    assert answer.header("cross-origin-opener-policy") == "same-origin"
    assert answer.header("permissions-policy")


async def test_static_files_need_no_key(fake_make: Make) -> None:
    gateway = fake_make(auth="required")
    for target in ("/ui", "/ui/static/app.js"):
        assert (await gateway.client.get(target)).status == 200


async def test_html_has_no_inline_script_or_style(fake_gateway: Gateway) -> None:
    html = (await fake_gateway.client.get("/ui")).body.decode()
    page = Page(re.sub(r"<link([^>]*)>", r"<link\1></link>", html))
    assert "style" not in page.tags
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert not re.findall(r"<script[^>]*>[^<]", html)
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith("/")


def static_files() -> list[str]:
    served = {".js", ".css", ".svg", ".html"}
    return sorted(
        str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.suffix in served
    )


@pytest.mark.parametrize("name", [name for name in static_files() if name != "index.html"])
async def test_every_file_has_its_content_type(fake_gateway: Gateway, name: str) -> None:
    answer = await fake_gateway.client.get(f"/ui/static/{name}")
    assert answer.status == 200
    assert answer.body == (STATIC / name).read_bytes()
    kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert (answer.header("content-type") or "").startswith(kind[name.rpartition(".")[2]])
    check_strict(answer, POLICY)


@pytest.mark.parametrize("name", [name for name in static_files() if name.endswith(".js")])
def test_scripts_never_parse_markup(name: str) -> None:
    if name.startswith("vendor/"):
        return
    source = (STATIC / name).read_text()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "srcdoc",
    ):
        assert way not in source, f"{name} has {way}"
    assert not re.search(r'(?: from |import\(|fetch\(|Source\()"(?![./])', source)


async def test_unchanged_file_gets_304(fake_gateway: Gateway) -> None:
    first = await fake_gateway.client.get("/ui/static/app.js")
    tag = first.header("etag") or ""
    for known in (tag, f'"other", {tag}', "*"):
        again = await fake_gateway.client.get("/ui/static/app.js", {"if-none-match": known})
        assert (again.status, again.body) == (304, b"")
        assert again.header("etag") == tag
    other = await fake_gateway.client.get("/ui/static/app.js", {"if-none-match": '"other"'})
    assert other.status == 200


async def test_a_head_request_is_answered(fake_gateway: Gateway) -> None:
    answer = await fake_gateway.client.send("HEAD", "/ui/static/app.js")
    assert answer.status == 200
    assert answer.header("etag")


@pytest.mark.parametrize(
    "name",
    [
        *("nothing.js", "index.html", "pages", "pages/", "", "app.js/", "vendor/README.md"),
        *(
            "../static_files.py",
            "..%2Fstatic_files.py",
            "%2e%2e/static_files.py",
            "pages/../app.js",
            "pages/../../x.js",
        ),
        *(
            "/etc/passwd",
            "%2Fetc%2Fpasswd",
            "app.js%00",
            "a\\..\\b.js",
            "vendor//x.js",
            "pages/jobs",
            "pages/jobs/",
            "pages/jobs/../overview.js",
            "a/b/c/d.js",
        ),
        "a" * 3000 + ".js",
    ],
)
async def test_other_files_are_not_found(fake_gateway: Gateway, name: str) -> None:
    check_problem(await fake_gateway.client.get(f"/ui/static/{name}"), 404)


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    files = FileCache(tmp_path)
    assert files.get("x.js") is None
    (tmp_path / "x.js").write_text("one")
    first = files.get("x.js")
    assert first is not None
    assert files.get("x.js") is first, "not read twice"
    (tmp_path / "x.js").write_text("another")
    second = files.get("x.js")
    assert second is not None
    assert (second.content, first.content) == (b"another", b"one")
    assert second.etag != first.etag


async def test_root_redirects_browsers(fake_gateway: Gateway) -> None:
    page = await fake_gateway.client.get("/", {"accept": "text/html,*/*"})
    assert (page.status, page.header("location")) == (302, "/ui")
    check_problem(await fake_gateway.client.get("/"), 404)


async def test_dashboard_can_be_disabled(fake_make: Make) -> None:
    gateway = fake_make(dashboard="off")
    for target in ("/", "/ui", "/ui/jobs", "/ui/static/app.js", "/ui/session"):
        check_problem(await gateway.client.get(target, {"accept": "text/html"}), 404)


def imports_of(name: str, seen: set[str]) -> set[str]:
    """Names of a module and all modules that it imports statically, relative to static."""
    if name not in seen:
        seen.add(name)
        folder = (STATIC / name).parent
        source = (STATIC / name).read_text()
        for path in re.findall(r'^(?:import|export)\b[^"]*from "(\.[^"]+)"', source, re.MULTILINE):
            target = (folder / path).resolve().relative_to(STATIC.resolve())
            imports_of(str(target), seen)
    return seen


def test_overview_size_is_within_budget() -> None:
    loaded = imports_of("app.js", set()) | imports_of("pages/overview.js", set())
    linked = re.findall(r'="/ui/static/([^"]+)"', (STATIC / "index.html").read_text())
    everything = loaded | set(linked) | {"index.html"}
    assert "vendor/uPlot.js" in everything
    weight = sum((STATIC / name).stat().st_size for name in everything)
    assert weight <= MOST_BYTES, f"{weight} bytes of {sorted(everything)}"
