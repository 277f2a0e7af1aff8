"""The page of `packer stats --html` in a real browser: it renders, asks for nothing, and nothing of a data set runs in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import packer
from packer.config import BuildConfig
from packer.excerpt import take
from packer.stats import measure
from packer.stats_page import stats_page
from tests.browser.accessible import faults, wider_than_the_screen
from tests.packer.hostile import TEXTS, TOKEN, hostile_folder
from tests.support import SAMPLE, TINY


def write_page(folder: Path, path: Path, name: str) -> Path:
    path.write_text(stats_page(measure(folder), take(packer.open(folder)), name=name), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page")
    packer.build(
        BuildConfig(
            datasets=(str(SAMPLE),),
            tokenizer=str(TINY),
            capacity=4096,
            out=place / "packed",
            eval_fraction=0.1,
            workers=1,
        )
    )
    return write_page(place / "packed", place / "stats.html", "data/packed")


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    return write_page(hostile_folder(place), place / "stats.html", "</title><script>window.ran=1</script>\u202e")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1100])
def test_it_renders_complains_of_nothing_and_asks_for_nothing(look, page_file: Path, width: int, dark: bool) -> None:
    opened = look(page_file, width=width, dark=dark)
    assert opened.complaints == []
    assert opened.requests == [page_file.as_uri()]
    assert opened.page.locator("h1").inner_text() == "Packed rows: data/packed"
    # Every chart has a size, and its bars have one.
    sizes = opened.page.locator("main svg.chart").evaluate_all(
        "all => all.filter(one => one.checkVisibility()).map(one => [one.getBoundingClientRect().width, one.querySelectorAll('rect').length])"
    )
    assert len(sizes) >= 8
    assert all(wide > 200 and bars > 0 for wide, bars in sizes)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1100])
def test_it_is_accessible_and_fits_the_screen(look, page_file: Path, width: int, dark: bool) -> None:
    page = look(page_file, width=width, dark=dark).page
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert faults(page) == []
    assert wider_than_the_screen(page) == 0


def test_dark_is_dark_and_print_is_white(look, page_file: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page = look(page_file, dark=True).page
    assert page.evaluate(ground) == "rgb(21, 23, 26)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert not page.locator("#row-choice").is_visible()
    assert page.locator("#row-text .segment").first.is_visible()
    # No text is cut off at a scrolled edge on paper.
    assert page.evaluate(
        "[...document.querySelectorAll('.text')].every(one => one.scrollHeight <= one.clientHeight + 1)"
    )


def test_scales_are_chosen_without_a_script_and_by_the_keyboard(look, page_file: Path) -> None:
    page = look(page_file).page
    linear, logarithmic = page.locator("#lengths .view-1"), page.locator("#lengths .view-2")
    assert linear.is_visible()
    assert not logarithmic.is_visible()
    page.locator("#length-scale-1").focus()
    page.keyboard.press("ArrowRight")
    assert logarithmic.is_visible()
    assert not linear.is_visible()


def test_a_block_is_found_again_in_the_other_picture(look, page_file: Path) -> None:
    page = look(page_file).page
    page.locator("#buffers .block").first.hover()
    marked = page.locator("#buffers .block.same")
    assert marked.count() == 2
    assert len(set(marked.evaluate_all("all => all.map(one => one.dataset.example)"))) == 1
    assert "chats.jsonl row" in page.locator(".block-said").inner_text()


def test_rows_are_browsed(look, page_file: Path) -> None:
    page = look(page_file).page
    rows = page.locator("#row-choice option").count()
    assert rows >= 4
    titles = {page.locator("#row-title b").inner_text()}
    for _ in range(rows - 1):
        page.locator("#row-after").click()
        titles.add(page.locator("#row-title b").inner_text())
    assert len(titles) == rows
    page.locator("#row-after").click()
    assert page.locator("#row-choice").input_value() == "0"
    page.locator("#row-choice").select_option("2")
    assert page.locator("#row-title b").inner_text() in titles


def test_a_token_tells_its_id_place_and_origin_by_pointer_tap_and_keyboard(look, page_file: Path) -> None:
    folder = page_file.parent / "packed"
    row = packer.open(folder)[0]
    page = look(page_file, width=375, touch=True).page
    body, said = page.locator("#row-text .text").first, page.locator("#token")

    def facts(place: int) -> list[str]:
        kind = "a target" if row.loss_mask[place] else "only read"
        return [
            f"id {row.input_ids[place]}",
            f"position {place} in",
            f"slot {place} of",
            kind,
            f"example {row.example_ids[0]}",
            "chats.jsonl row",
        ]

    body.locator(".t").nth(3).tap()
    assert all(fact in said.inner_text() for fact in facts(3))
    body.locator(".t").nth(1).hover()
    assert all(fact in said.inner_text() for fact in facts(1))
    body.focus()
    page.keyboard.press("ArrowRight")
    assert all(fact in said.inner_text() for fact in facts(2))
    target = int(row.loss_mask.argmax())
    for _ in range(target - 2):
        page.keyboard.press("ArrowRight")
    assert all(fact in said.inner_text() for fact in facts(target))
    assert "a target" in said.inner_text()


def test_targets_are_marked_and_are_those_of_the_mask(look, page_file: Path) -> None:
    row = packer.open(page_file.parent / "packed")[0]
    page = look(page_file).page
    marked = (
        page.locator("#row-text .text")
        .first.locator(".t")
        .evaluate_all(
            "all => all.map(one => [one.classList.contains('target'), getComputedStyle(one).boxShadow !== 'none'])"
        )
    )
    assert [target for target, _ in marked[:60]] == row.loss_mask[:60].tolist()
    assert all(target == underlined for target, underlined in marked)


def test_search_finds_text_over_tokens_and_rows(look, page_file: Path) -> None:
    page = look(page_file).page
    page.locator("#search-text").fill("<|im_START|>System")
    found = page.locator("#search-found")
    assert "matches" in found.inner_text()
    total = int(found.inner_text().split()[0].replace(",", ""))
    assert total > 1
    stops = page.evaluate(
        """total => Array.from({ length: total }, () => {
            document.getElementById("search").requestSubmit();
            const marked = [...document.querySelectorAll(".hit-now")];
            return [
                document.getElementById("search-found").textContent,
                marked.map(one => one.textContent).join(""),
                document.getElementById("row-choice").value,
                marked[0].dataset.at,
            ];
        })""",
        total,
    )
    assert [said for said, _, _, _ in stops] == [f"match {number + 1} of {total}" for number in range(total)]
    assert all("<|im_start|>system" in marked for _, marked, _, _ in stops)
    assert len({(row, at) for _, _, row, at in stops}) == total
    assert len({row for _, _, row, _ in stops}) > 1
    page.locator("#search-text").fill("no such text anywhere")
    assert found.inner_text() == "no match"
    assert page.locator(".hit").count() == 0


def test_without_scripts_the_page_still_tells_its_numbers(browser, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("#saved table").is_visible()
    assert "packer inspect" in page.locator(".no-script").inner_text()
    context.close()


def test_nothing_of_a_hostile_data_set_runs_loads_or_turns_the_page_around(look, hostile_file: Path) -> None:
    opened = look(hostile_file)
    page = opened.page
    shown, tokens = "", set()
    for place in range(page.locator("#row-choice option").count()):
        page.locator("#row-choice").select_option(str(place))
        page.locator("#row-text .t").first.hover()
        shown += page.evaluate("document.getElementById('row-text').textContent")
        tokens |= set(page.locator("#row-text .t").all_text_contents())
    page.locator("#search-text").fill("<script>")
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert opened.complaints == []
    assert opened.requests == [hostile_file.as_uri()]
    assert (
        page.evaluate("document.querySelectorAll('img, iframe, object, embed, link, svg[onload], [onerror]').length")
        == 0
    )
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 2
    assert page.evaluate("document.querySelectorAll('bdi *, .t *').length") == page.evaluate(
        "document.querySelectorAll('bdi .esc, .t .esc, .t .end').length"
    )
    assert TOKEN in tokens
    # The texts are there to be read, as they are.
    for text in ("</script><script>window.ran = 1</script>", "<img src=x onerror='window.ran = 1'>", "{{ 7 * 7 }}"):
        assert text in shown
    assert "U+202E" in shown
    assert "\u202e" not in page.evaluate("document.body.innerText")
    assert "\x1b" not in shown
    assert "{{ 7*7 }}" in page.locator("#ledger").inner_text()
    assert page.title().startswith("Packed rows: </title><script>")


def test_what_would_run_does_so_without_the_escapes_and_the_policy(look, hostile_file: Path, tmp_path: Path) -> None:
    """The same texts put into a page as markup set the property that the test above looks for: it can see what it denies."""
    naked = tmp_path / "naked.html"
    naked.write_text(f"<!doctype html><body>{TEXTS[0]}{TEXTS[1]}</body>", encoding="utf-8")
    page = look(naked).page
    page.wait_for_function("window.ran === 1", timeout=120_000)
    # And the policy alone keeps them from running where an escape is forgotten.
    html = hostile_file.read_text(encoding="utf-8")
    forgotten = tmp_path / "forgotten.html"
    forgotten.write_text(html.replace("<footer>", f"<footer>{TEXTS[0]}{TEXTS[1]}"), encoding="utf-8")
    opened = look(forgotten)
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


@pytest.mark.parametrize("width", [375, 1100])
def test_a_hostile_page_is_accessible_and_fits_too(look, hostile_file: Path, width: int) -> None:
    page = look(hostile_file, width=width).page
    assert faults(page) == []
    assert wider_than_the_screen(page) == 0


def test_right_to_left_text_runs_as_it_should_and_stays_in_its_line(look, hostile_file: Path) -> None:
    """Where each token stands: those of an Arabic sentence from right to left, those of the English behind it from left to right."""
    page = look(hostile_file).page
    rows = page.locator("#row-choice option").count()
    for place in range(rows):
        page.locator("#row-choice").select_option(str(place))
        if "مرحبا" in page.locator("#row-text").inner_text():
            break
    starts = page.evaluate(
        """() => {
            const body = [...document.querySelectorAll(".text")].find(one => one.textContent.includes("مرحبا"));
            return [...body.querySelectorAll(".t")].map(one => [one.textContent, one.getBoundingClientRect().left, one.getBoundingClientRect().top]);
        }"""
    )
    first = next(place for place, (text, _, _) in enumerate(starts) if any("\u0600" <= one <= "\u06ff" for one in text))
    arabic = []
    for text, left, top in starts[first:]:
        if not any("\u0600" <= one <= "\u06ff" for one in text) or top != starts[first][2]:
            break
        arabic.append(left)
    assert len(arabic) > 2
    assert arabic == sorted(arabic, reverse=True)
    latin = [
        left for text, left, top in starts[first:] if top == starts[first][2] and text.strip() in ("latin", "again")
    ]
    assert latin == sorted(latin)
