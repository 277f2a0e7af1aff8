"""A headless Chromium: Debian's, or the one that playwright has fetched. Without either, the tests here are skipped and say why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@dataclass
class Opened:
    """A page, with everything that it asked for beside itself and everything that it complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; it can reach nothing, since every context is offline."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install '.[browser]'")
    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with api.sync_playwright() as playwright:
        executable = installed or playwright.chromium.executable_path
        if not Path(executable).is_file():
            pytest.skip("no browser: apt-get install chromium, or playwright install chromium")
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Any]:
    """look(path, width=…, dark=…) opens a file as a person does and watches it."""
    contexts: list[BrowserContext] = []

    def open_(path: Path, *, width: int = 1100, height: int = 900, dark: bool = False, touch: bool = False) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
            offline=True,
        )
        contexts.append(context)
        opened = Opened(page=context.new_page())
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.complaints.append(f"error: {error}"))
        opened.page.on("dialog", lambda dialog: (opened.complaints.append("a dialog"), dialog.dismiss()))
        opened.page.goto(path.as_uri())
        return opened

    yield open_
    for context in contexts:
        context.close()
