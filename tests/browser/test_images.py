"""Images: uploaded in the page, followed stage by stage, and seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests import photos
from tests.browser.site import HANDLERS, Site, running
from tests.browser.view import View


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Its worker waits with each image until it is let go on."""
    with running(
        tmp_path_factory.mktemp("site"), worker_handlers=f"{HANDLERS},tests.browser.slow_images"
    ) as site:
        yield site


def test_an_upload_is_followed_and_shown(view: View, site: Site) -> None:
    page = view.go("/ui/images", "Images")
    file = {"name": "harbour.jpg", "mimeType": "image/jpeg", "buffer": photos.photograph("jpeg")}
    page.get_by_label("Images to upload").set_input_files(file)
    card = page.locator(".gallery a").first
    expect(card).to_contain_text("harbour.jpg")
    expect(card.locator(".badge")).to_have_text("validating")  # where the worker stands now
    (site.directory / "data" / "images" / "go").touch()
    expect(card.locator(".badge")).to_have_text("processed")
    _is_seen(view, ".gallery img")
    card.click()
    view.ready("harbour.jpg")
    _is_seen(view, "main img")
    expect(view.main()).to_contain_text("640 × 480")


def _is_seen(view: View, picture: str) -> None:
    """Decoded, and of some size."""
    image = view.page.locator(picture).first
    expect(image).to_be_visible()
    image.scroll_into_view_if_needed()
    expect(image).to_have_js_property("complete", True)
    assert image.evaluate("async (node) => (await node.decode(), node.naturalWidth)") > 0


def test_what_is_no_image_says_why(view: View, site: Site) -> None:
    (site.directory / "data" / "images" / "go").touch()
    page = view.go("/ui/images", "Images")
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
    view.ready("notes.png")
    expect(page.locator("main .box.error")).to_be_visible()
