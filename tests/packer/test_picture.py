"""The README's picture is what the code draws of the sample."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.packer.picture import PICTURE, picture


def test_the_picture_in_the_readme_is_the_one_that_the_code_draws() -> None:
    drawn = PICTURE.read_text(encoding="utf-8")
    assert drawn == picture() + "\n", "python -m tests.packer.picture writes it anew"
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(drawn) < 50_000
