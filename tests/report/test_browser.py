"""The page and its tables in a browser: Debian's Chromium, driven by Playwright; skipped where there is none."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from ampbench.records.measured import Failure
from ampbench.report.material import Material, gather, material_of
from ampbench.report.page import make_page, render
from ampbench.report.views import cases
from ampbench.store import read_run
from tests.compared_runs import Times, make_run
from tests.report.hostile_runs import hostile_material
from tests.report.large_runs import write_zoo_run
from tests.report.materials import CHROMIUM, HISTORY, NO_CHROMIUM, RESULTS, make_material
from tests.stored_runs import make_case

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

BASELINE, CANDIDATE = "20261121T051635Z-vm-282d99", "20261121T051926Z-vm-12cb08"
PAGES = ("readme", "comparison", "history", "studies", "zoo")
OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""The rules of axe that see colours, all that the scheme changes."""
each_page = pytest.mark.parametrize("name", PAGES)

Address = Callable[[str], str]


@pytest.fixture(scope="module")
def address(readme_run: Material, tmp_path_factory: pytest.TempPathFactory) -> Address:
    """Where the page of a name lies; it is made when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")
    materials: dict[str, Callable[[], Material]] = {
        "readme": lambda: readme_run,
        "comparison": lambda: gather([CANDIDATE], RESULTS, baseline=BASELINE),
        "history": lambda: gather(HISTORY, RESULTS),
        "studies": lambda: of_kinds("casts", "rules", "headroom", "origin", "keep-fp32", "convergence", "ceilings"),
        "zoo": lambda: material_of([read_run(write_zoo_run(folder, networks=50))]),
        "hostile": lambda: hostile_material(tmp_path_factory.mktemp("hostile")),
        "tables": many_cases,
    }

    def find(name: str) -> str:
        file: Path = folder / f"{name}.html"
        if not file.exists():
            made = materials[name]()
            text = render([cases(made)], title="cases") if name == "tables" else make_page(made)
            file.write_text(text, encoding="utf-8")
        return file.as_uri()

    return find


def many_cases() -> Material:
    """A page of 780 cases: the later the workload and the precision, the longer it takes; every tenth failed."""
    names = ("fp32", "tf32", "fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure")
    plan = [make_case(name, workload=f"net_{number:03}", parameters={}) for number in range(130) for name in names]
    failed = plan[9::10]
    run = make_run(Times(*((case, [] if case in failed else [1e-6 * 1.02**n]) for n, case in enumerate(plan))))
    for case in failed:
        run.failures[case.case_id] = Failure(case_id=case.case_id, stage="round", cause="exception", message="boom")
    return make_material(run)


@contextmanager
def opened(browser: Browser, address: str, width: int = 1400, scheme: str = "light", **options: Any) -> Iterator[Page]:
    """Give the page at `address` in a window; at the end nothing may have gone wrong in it, nor have been asked for."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme, **options)
    page = context.new_page()
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("warning", "error") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda sent: None if sent.url.partition("#")[0] == address else wrong.append(sent.url[:200]))
    try:
        page.goto(address)
        yield page
        assert wrong == []
    finally:
        context.close()


def of_kinds(*kinds: str) -> Material:
    """Return small runs of the real program, each of another kind."""
    runs = Path(__file__).parents[1] / "net" / "runs"
    return material_of([], explanations=[read_run(runs / f"{kind}.jsonl") for kind in kinds])


def unfold(page: Page) -> None:
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")


def assert_nothing_sticks_out(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == page.evaluate("innerWidth")


def assert_whole(page: Page) -> None:
    """Assert that every section is seen with its heading, and every table and drawing that is not folded away."""
    sections = page.locator("main > section")
    assert sections.count() >= 3
    for number in range(sections.count()):
        expect(sections.nth(number).locator("h1, h2").first).to_be_visible()
    for part in page.locator("main table, main .drawing svg").all():
        if not part.evaluate("part => part.closest('details:not([open]), [hidden]') !== null"):
            assert part.evaluate("part => part.checkVisibility() && part.getBoundingClientRect().height > 0")
    odd = r"(?<!error is )\bundefined\b|(?<!first )\bNaN\b|\b(null|None)\b"
    assert not re.findall(odd, page.locator("main").inner_text())


def test_the_page_opens(browser: Browser, address: Address):
    with opened(browser, address("readme")) as page:
        unfold(page)
        assert_whole(page)
        assert_nothing_sticks_out(page)


@pytest.mark.slow
@each_page
@pytest.mark.parametrize(("width", "scheme", "script"), [(1400, "light", True), (400, "dark", False)])
def test_the_page_is_whole_in_every_window(
    browser: Browser, address: Address, name: str, width: int, scheme: str, script: bool
):
    with opened(browser, address(name), width, scheme, java_script_enabled=script) as page:
        assert_whole(page)
        unfold(page)
        assert_whole(page)
        assert_nothing_sticks_out(page)
        if not script:
            assert page.locator("main input:visible").count() == 0
            rows = page.locator("#cases tbody tr").count()
            assert rows == page.locator("#cases tbody tr:visible").count()
            assert (rows > 0) is (name != "studies")  # which have no cases


@pytest.mark.slow
@each_page
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_axe_finds_no_serious_violation(browser: Browser, address: Address, name: str, width: int, scheme: str):
    with opened(browser, address(name), width, scheme, bypass_csp=True) as page:  # axe is not the page's own script
        unfold(page)
        asked = {"resultTypes": ["violations"]} | ({"runOnly": OF_COLOURS} if scheme == "dark" else {})
        violations = Axe().run(page, options=asked).response["violations"]
        found = [one for one in violations if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"][:300] for node in one["nodes"][:5]]) for one in found] == []


@pytest.mark.slow
def test_everything_that_answers_is_reached_by_the_keyboard(browser: Browser, address: Address):
    with opened(browser, address("comparison")) as page:
        unfold(page)
        wanted = {
            "the link past the navigation": ".skip",
            "the navigation": 'nav[aria-label="Sections"] a',
            "the search": "#cases .controls input",
            "the buttons that sort": "#cases th button",
            "tables that scroll": ".scroll",
            "drawings that scroll": ".drawing",
        }
        reached: set[str] = set()
        for _ in range(400):
            page.keyboard.press("Tab")
            reached |= {
                what
                for what, selector in wanted.items()
                if page.evaluate("selector => document.activeElement?.matches(selector) ?? false", selector)
            }
            if page.evaluate("document.activeElement === document.body"):
                break
        assert set(wanted) - reached == set()


@pytest.mark.slow
def test_paper_is_light_and_holds_the_whole_table_of_cases(browser: Browser, address: Address):
    upright = round((210 - 2 * 12) / 25.4 * 96)  # CSS pixels between A4's margins
    with opened(browser, address("comparison"), upright, "dark") as page:
        unfold(page)
        page.emulate_media(media="print", color_scheme="dark")
        expect(page.get_by_role("navigation", name="Sections")).to_be_hidden()
        assert page.pdf(format="A4").startswith(b"%PDF")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 29, 33)"
        for shown in ("#cases .swatch", "#networks .swatch"):
            assert style(page, shown, "printColorAdjust") == "exact"
        tables = page.locator("main table").evaluate_all("all => all.map((one) => one.scrollWidth)")
        assert max(tables) <= upright
        assert float(style(page, "#networks td", "fontSize")[:-2]) <= float(style(page, "body", "fontSize")[:-2])


def style(page: Page, selector: str, name: str) -> str:
    found: str = page.locator(selector).first.evaluate("(one, name) => getComputedStyle(one)[name]", name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("width", "script"), [(1400, True), (400, False)])
def test_hostile_text_does_nothing(browser: Browser, address: Address, width: int, script: bool):
    with opened(browser, address("hostile"), width, java_script_enabled=script) as page:
        if script:
            unfold(page)
        assert_nothing_sticks_out(page)
        assert page.evaluate("typeof window.hurt") == "undefined"
        assert page.locator("main img, main script, iframe").count() == 0


@pytest.fixture
def page(browser: Browser, address: Address) -> Iterator[Page]:
    with opened(browser, address("tables")) as page:
        yield page


def labels(page: Page) -> list[str]:
    """Return the case and the precision of each row."""
    return page.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => `${row.cells[0].innerText} ${row.cells[1].innerText}`)"
    )


def status(page: Page) -> str:
    return page.get_by_role("status").inner_text()


def head(page: Page, title: str) -> Locator:
    return page.locator("thead th", has_text=title)


def test_the_first_hundred_rows_are_there_and_the_others_when_asked_for(page: Page):
    assert len(labels(page)) == 100
    assert status(page) == "780 cases, the first 100 are shown"
    page.get_by_role("button", name="Show 500 more").click()
    page.get_by_role("button", name="Show 180 more").click()
    assert len(labels(page)) == 780
    assert status(page) == "780 cases"
    expect(page.locator(".scroll")).to_be_focused()


def test_a_header_sorts_up_and_down_and_back_to_the_order_of_the_plan(page: Page):
    planned = labels(page)
    time = head(page, "time/step")
    time.get_by_role("button").press("Enter")
    assert time.get_attribute("aria-sort") == "ascending"
    assert labels(page)[0] == "net_000 fp32"
    time.get_by_role("button").press("Enter")
    assert time.get_attribute("aria-sort") == "descending"
    assert labels(page)[0] == "net_129 fp16_pure"  # the last, bf16_pure, failed
    time.get_by_role("button").press("Enter")
    assert time.get_attribute("aria-sort") is None
    assert labels(page) == planned


@pytest.mark.slow
@pytest.mark.parametrize("clicks", [1, 2])
def test_times_are_sorted_by_their_values_and_cases_without_one_are_last(page: Page, clicks: int):
    for _ in range(clicks):
        head(page, "time/step").get_by_role("button").click()
    for _ in range(2):
        page.locator("button.more").click()
    times = page.locator("tbody td:nth-child(3)").all_text_contents()
    units = list(dict.fromkeys(time.split()[1] if time else "" for time in times))
    assert units == [*["us", "ms", "s"][:: 1 if clicks == 1 else -1], ""]
    assert times.count("") == 78


def test_every_word_that_is_searched_for_must_be_there(page: Page):
    page.get_by_label("search").fill("TF32 net_12")
    assert labels(page) == [f"net_{number} tf32" for number in range(120, 130)]
    assert status(page) == "10 of 780 cases match"
    page.get_by_label("search").fill("boom bf16_pure")
    assert all("bf16_pure" in label for label in labels(page))
    page.get_by_label("search").fill("nothing has this")
    assert labels(page) == []
