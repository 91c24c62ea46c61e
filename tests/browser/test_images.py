"""Images: upload, live stages, preview."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.support.dashboard_page import DashboardPage
from tests.browser.support.live_server import HANDLERS, LiveServer, run_server
from tests.support.files import photos


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose worker processes an image only after the file `go` exists."""
    with run_server(
        tmp_path_factory.mktemp("server"),
        worker_handlers=f"{HANDLERS},tests.browser.support.slow_images",
    ) as server:
        yield server


def test_upload_shows_stages_and_preview(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui/images", "Images")
    file = {"name": "harbour.jpg", "mimeType": "image/jpeg", "buffer": photos.photograph("jpeg")}
    page.get_by_label("Images to upload").set_input_files(file)
    card = page.locator(".gallery a").first
    expect(card).to_contain_text("harbour.jpg")
    expect(card.locator(".badge")).to_have_text("validating")  # the worker waits at this stage
    (server.directory / "data" / "images" / "go").touch()
    expect(card.locator(".badge")).to_have_text("processed")
    _assert_image_loaded(dashboard, ".gallery img")
    card.click()
    dashboard.wait_for_page("harbour.jpg")
    _assert_image_loaded(dashboard, "main img")
    expect(dashboard.main()).to_contain_text("640 × 480")


def _assert_image_loaded(dashboard: DashboardPage, picture: str) -> None:
    """The image is visible, decoded and not empty."""
    image = dashboard.page.locator(picture).first
    expect(image).to_be_visible()
    image.scroll_into_view_if_needed()
    expect(image).to_have_js_property("complete", True)
    assert image.evaluate("async (node) => (await node.decode(), node.naturalWidth)") > 0


def test_invalid_image_shows_its_error(dashboard: DashboardPage, server: LiveServer) -> None:
    (server.directory / "data" / "images" / "go").touch()
    page = dashboard.open("/ui/images", "Images")
    file = {
        "name": "notes.png",
        "mimeType": "image/png",
        "buffer": b"\x89PNG\r\n\x1a\n and no more",
    }
    page.get_by_label("Images to upload").set_input_files(file)
    card = page.locator(".gallery a").first
    expect(card).to_contain_text("notes.png")
    expect(card.locator(".badge")).to_have_text("failed")
    card.click()
    dashboard.wait_for_page("notes.png")
    expect(page.locator("main .box.error")).to_be_visible()
