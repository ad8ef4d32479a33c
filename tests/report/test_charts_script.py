"""Charts that answer, in a browser, and what leads to them. Skipped where there is no Chromium."""

import html
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ampbench.report.material import material_of
from ampbench.report.page import make_page
from ampbench.report.site import make_site
from ampbench.store.run_file import write_whole
from tests.compared_runs import BF16, FP32, Times, arms, make_run, noisy
from tests.report.materials import CHROMIUM
from tests.report.ranged_runs import FP16, erring, origin_run, originating
from tests.report.studied_runs import scalings, trained, training_run
from tests.stored_runs import make_case

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

ORIGINS = 'figure[data-chart="explanation-origins"]'
TRADEOFF = 'figure[data-chart="tradeoff"]'
ANSWERS = 20_000
"""Milliseconds in which the library is unpacked and the first chart drawn, on a machine that is busy."""

Opened = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a comparison in which fp32 became slower, of cases that fill a window, and of errors of four cases."""
    others = [
        make_case(precision, workload=f"net_{n % 6}", batch_size=8 << n // 6)
        for n in range(12)
        for precision in ("fp32", "bf16_autocast")
    ]
    times = [(case, noisy(2e-3, seed=3)) for case in (BF16, *others)]
    old, new = arms()
    baseline = make_run(Times((FP32, noisy(1e-3, seed=1)), *times), fresh=noisy(1e-3, 10, seed=4), header=old)
    candidate = make_run(Times((FP32, noisy(1.1e-3, seed=2)), *times), fresh=noisy(1.1e-3, 10, seed=4), header=new)
    made: Path = tmp_path_factory.mktemp("charts") / "page.html"
    erred = [make_case("fp16_autocast", workload=f"net_{number}", phase="training") for number in range(4)]
    passes = [originating(erring("a", kept_rel_l2=1e-3), erring("b", kept_rel_l2=2e-3), case=case) for case in erred]
    explained = material_of([candidate], baseline, explanations=[origin_run(*passes, cases=erred)])
    made.write_text(make_page(explained), encoding="utf-8")
    return made


@pytest.fixture
def opened(browser: Browser, file: Path) -> Opened:
    @contextmanager
    def opening(fragment: str = "", width: int = 1400, before: str = "", **options: Any) -> Iterator[Page]:
        """Give the page in a window; `before` is a script that runs first. At the end nothing may have gone wrong."""
        wrong: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 1000}, **options)
        page = context.new_page()
        page.on("console", lambda said: wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.add_init_script(before)
        page.goto(file.as_uri() + fragment)
        yield page
        context.close()
        assert wrong == []

    return opening


def drawn(page: Page, selector: str = ORIGINS) -> Locator:
    """Return a chart, once it answers."""
    figure = page.locator(selector).first
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_attribute("data-drawn", re.compile("."), timeout=ANSWERS)
    return figure


def drag(page: Page, selector: str) -> bool:
    """Drag the middle of a chart, and return whether what it shows moved."""
    figure = drawn(page, selector)
    marks = figure.locator("svg .mark-symbol, svg .mark-line, svg .mark-rule")
    before = marks.evaluate_all("all => all.map(one => one.outerHTML)")
    svg = figure.locator("svg").bounding_box()
    assert svg is not None
    x, y = svg["x"] + 150, svg["y"] + svg["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=4)
    page.mouse.up()
    return marks.evaluate_all("all => all.map(one => one.outerHTML)") != before


def test_a_chart_is_called_by_its_words_and_they_follow_what_is_chosen(opened: Opened):
    with opened() as page:
        figure = drawn(page)
        title, words = figure.locator("figcaption").inner_text(), figure.locator(".alt").inner_text()
        assert "net_0" in words
        expect(figure.get_by_role("img", name=f"{title}. {words}", exact=True)).to_have_count(1)
        expect(figure.get_by_role("img")).to_have_count(1)
        figure.get_by_role("combobox").select_option(index=1)
        expect(figure.locator(".alt")).to_contain_text("net_1")
        expect(figure.locator(".alt")).not_to_contain_text("net_0")
        words = figure.locator(".alt").inner_text()
        expect(figure.get_by_role("img", name=f"{title}. {words}", exact=True)).to_have_count(1)


@pytest.mark.slow
def test_what_drew_a_chart_before_is_let_go(opened: Opened):
    with opened() as page:
        figure = drawn(page)
        page.evaluate("""() => {
            const embed = window.vegaEmbed;
            window.open_views = 0;
            window.vegaEmbed = async (...given) => {
                const result = await embed(...given);
                const finalize = result.finalize;
                window.open_views += 1;
                result.finalize = () => { window.open_views -= 1; finalize(); };
                return result;
            };
        }""")
        for index in (1, 2, 3):
            figure.get_by_role("combobox").select_option(index=index)
            value = figure.locator("option:checked").get_attribute("value") or ""
            expect(figure).to_have_attribute("data-drawn", value)
        assert page.evaluate("window.open_views") == 1


@pytest.mark.slow
def test_a_finger_moves_the_page_and_a_mouse_the_data(opened: Opened):
    with opened() as page:
        expect(page.locator(".mouse-only")).to_be_visible()
        assert drag(page, TRADEOFF)
    with opened(width=400, has_touch=True, is_mobile=True) as page:
        expect(page.locator(".mouse-only")).to_be_hidden()
        assert not drag(page, TRADEOFF)


@pytest.mark.slow
def test_a_chart_is_as_wide_as_the_window_a_phones_too(opened: Opened):
    def width(page: Page) -> float:
        box = page.locator(TRADEOFF).first.locator("svg").bounding_box()
        assert box is not None
        return box["width"]

    with opened(width=1000) as page:
        drawn(page, TRADEOFF)
        whole = width(page)
        page.set_viewport_size({"width": 700, "height": 1000})
        page.wait_for_function("wide => document.querySelector('.drawing svg').clientWidth < wide - 200", arg=whole)
        assert width(page) == pytest.approx(whole - 300, abs=40)
    with opened(width=400) as page:
        drawn(page, TRADEOFF)
        assert 300 <= width(page) <= 400
        assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_a_link_opens_at_what_it_chose(opened: Opened):
    with opened("#explanation-origins=2") as page:
        expect(page.locator(ORIGINS)).to_be_in_viewport()
        expect(page.locator(ORIGINS)).to_have_attribute("data-drawn", "2", timeout=ANSWERS)
    with opened("#q=net_5") as page:
        expect(page.locator("#cases-title")).to_be_in_viewport()
        expect(page.locator("#cases tbody tr")).to_have_count(4)


@pytest.mark.slow
def test_what_an_address_names_but_is_not_there_leaves_it(opened: Opened):
    with opened("#explanation-origins=999") as page:
        drawn(page)
        expect(page).not_to_have_url(re.compile("999"))


@pytest.mark.slow
def test_in_a_sandbox_without_a_history_everything_answers(browser: Browser, file: Path):
    wrong: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    inside = html.escape(file.read_text(encoding="utf-8"))
    page.set_content(f'<iframe sandbox="allow-scripts" srcdoc="{inside}" width="1200" height="900"></iframe>')
    frame = page.frame_locator("iframe")
    frame.locator("#cases").get_by_label("search").fill("net_5")
    expect(frame.locator("#cases tbody tr")).to_have_count(4)
    figure = frame.locator(ORIGINS)
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_attribute("data-drawn", re.compile("."), timeout=ANSWERS)
    figure.get_by_role("combobox").select_option(index=1)
    chosen = figure.locator("option:checked").get_attribute("value") or ""
    expect(figure).to_have_attribute("data-drawn", chosen)
    context.close()
    assert wrong == []


@pytest.mark.slow
def test_the_charts_of_a_site_are_drawn_by_the_file_beside_its_pages(browser: Browser, tmp_path: Path):
    run = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4))))
    path = write_whole([run], tmp_path)[run.header.run]
    for name, text in make_site([str(path)], tmp_path):
        (tmp_path / name).write_text(text, encoding="utf-8")
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text))
    page.goto((tmp_path / f"{run.header.run}.html").as_uri())
    drawn(page, TRADEOFF)
    assert page.locator("#cases tbody tr").count() == 2
    assert wrong == []
    page.close()


def test_legends_list_what_is_drawn_of_the_case_that_is_chosen(browser: Browser, tmp_path: Path):
    other = make_case("bf16_pure", phase="training", input_dtype="bf16")
    erred = [erring("layer", kept_rel_l2=1e-3, overflowed=overflowed) for overflowed in (3, 0)]
    run = origin_run(originating(erred[0]), originating(erred[1], case=other), cases=(FP16, other))
    made = tmp_path / "origins.html"
    made.write_text(make_page(material_of([], explanations=[run])), encoding="utf-8")
    page = browser.new_page()
    page.goto(made.as_uri())
    figure = drawn(page, 'figure[data-chart="explanation-origins"]')
    expect(figure.locator("svg")).to_contain_text("overflows")
    figure.get_by_role("combobox").select_option("1")
    expect(figure.locator("svg")).to_contain_text("does not overflow")
    page.close()


LEGENDS = """() => [...document.querySelectorAll("#explanation .drawing svg")].map((svg) => {
  const labels = [...svg.querySelectorAll(".role-legend-label")].map((one) => one.getBoundingClientRect().right);
  return Math.max(0, ...labels) - svg.getBoundingClientRect().right;
})"""
"""So many pixels does each chart's legend reach beyond the chart."""


@pytest.mark.parametrize("width", [1400, 400])
def test_the_charts_of_studies_are_drawn_again_as_they_were(browser: Browser, tmp_path: Path, width: int):
    studied = [
        training_run(*trained()),
        training_run(*scalings(), run="settings"),
    ]
    file = tmp_path / "studies.html"
    file.write_text(make_page(material_of([], explanations=studied)), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    figures = page.locator("#explanation figure[data-chart]")
    for number in range(figures.count()):
        figures.nth(number).scroll_into_view_if_needed()
        expect(figures.nth(number)).to_have_attribute("data-drawn", re.compile("."), timeout=ANSWERS)
    assert figures.count() == 2
    assert wrong == []
    assert max(page.evaluate(LEGENDS)) <= 0
    page.close()
