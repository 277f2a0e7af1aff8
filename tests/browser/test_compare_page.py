"""The page of `trainer compare --html` in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.accessible import faults, wider_than_the_screen
from tests.trainer.compare_document import document
from trainer.compare_page import compare_page


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "compare.html"
    path.write_text(compare_page(document()), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1100])
def test_it_renders_quietly_is_accessible_and_fits_the_screen(look, page_file: Path, width: int, dark: bool) -> None:
    opened = look(page_file, width=width, dark=dark)
    assert opened.complaints == []
    assert opened.requests == [page_file.as_uri()]
    assert opened.page.locator(".view-1 polyline.curve").count() == 12
    assert "Equivalent" in opened.page.locator(".lead").inner_text()
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert faults(opened.page) == []
    assert wider_than_the_screen(opened.page) == 0
