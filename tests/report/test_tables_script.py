"""Tables in a browser: sorted, filtered, searched. Skipped where there is no Chromium."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ampbench.records.measured import Failure
from ampbench.report.cases import cases
from ampbench.report.page import render
from tests.compared_runs import Times, make_run
from tests.report.materials import CHROMIUM, make_material
from tests.stored_runs import make_case

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

WORKLOADS = 130
PRECISIONS = ("fp32", "tf32", "fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure")
FIRST, MORE = 100, 500


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of 780 cases: the later the workload and the precision, the longer it takes; every tenth failed."""
    plan = [
        make_case(precision, workload=f"net_{number:03}", parameters={})
        for number in range(WORKLOADS)
        for precision in PRECISIONS
    ]
    failed = plan[9::10]
    run = make_run(Times(*((case, [] if case in failed else [1e-6 * 1.02**n]) for n, case in enumerate(plan))))
    for case in failed:
        run.failures[case.case_id] = Failure(case_id=case.case_id, stage="round", cause="exception", message="boom")
    material = make_material(run)
    view = cases(material)
    assert view is not None
    file: Path = tmp_path_factory.mktemp("tables") / "page.html"
    file.write_text(render([view], title="cases"), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    opened = context.new_page()
    opened.on("console", lambda said: wrong.append(said.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(address)
    yield opened
    context.close()
    assert wrong == []


def labels(page: Page) -> list[str]:
    return [" ".join(text.split()) for text in page.locator("tbody th").all_text_contents()]


def choose(page: Page, what: str, value: str) -> None:
    page.get_by_role("combobox", name=what, exact=True).select_option(value, timeout=5000)


def status(page: Page) -> str:
    return page.get_by_role("status").inner_text()


def test_the_first_hundred_rows_are_there_and_the_others_when_asked_for(page: Page):
    assert len(labels(page)) == FIRST
    assert status(page) == "780 cases, the first 100 are shown"
    page.get_by_role("button", name="Show 500 more").click()
    assert len(labels(page)) == FIRST + MORE
    page.get_by_role("button", name="Show all 780").click()
    assert len(labels(page)) == WORKLOADS * len(PRECISIONS)
    assert status(page) == "780 cases"
    expect(page.locator(".scroll")).to_be_focused()


def test_thousands_of_rows_stand_in_blocks_under_the_same_columns_and_in_print_in_one_table(page: Page):
    def places(row: str) -> list[float]:
        page.locator(row).scroll_into_view_if_needed()
        return page.locator(row).evaluate("row => [...row.cells].map((cell) => cell.getBoundingClientRect().left)")

    head = "thead tr"
    before = places(head)
    page.get_by_role("button", name="Show all 780").click()
    assert page.locator("tbody").evaluate_all("all => all.map((one) => one.rows.length)") == [250, 250, 250, 30]
    assert page.locator("tbody").last.evaluate("body => getComputedStyle(body).contentVisibility") == "auto"
    for row in (head, "#case-0", "#case-775"):
        assert places(row) == pytest.approx(before, abs=1)
    page.evaluate("scrollTo(0, 0)")
    assert page.evaluate("find('net_128')")  # as a reader finds it, far below the window
    page.emulate_media(media="print")
    assert page.locator("tbody").last.evaluate("body => getComputedStyle(body).display") == "table-row-group"
    page.emulate_media(media="screen")
    page.get_by_label("search").fill("net_12")
    assert page.locator("tbody").count() == 1
    assert page.locator("table").get_attribute("class") == "cases"


def test_what_is_printed_has_every_row_and_afterwards_the_first_are_shown_again(page: Page):
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(labels(page)) == WORKLOADS * len(PRECISIONS)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(labels(page)) == FIRST


def test_a_header_sorts_up_and_down_and_back_to_the_order_of_the_plan(page: Page):
    planned = labels(page)
    head = page.locator("th[data-key=time]")
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert labels(page)[0] == "net_000 fp32"
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert labels(page)[0] == "net_129 fp16_pure"  # the last, bf16_pure, failed
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") is None
    assert labels(page) == planned


@pytest.mark.slow
def test_times_are_sorted_by_what_they_are_and_not_by_what_is_written(page: Page):
    page.goto(f"{page.url}#sort=time")
    page.get_by_role("button", name="Show all").click()
    units = [text.split()[1] for text in page.locator("tbody td:nth-child(4)").all_text_contents() if " " in text]
    ordered = list(dict.fromkeys(one for one in units if one in ("us", "ms", "s")))
    assert ordered == ["us", "ms", "s"]


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["time", "-time"])
def test_what_has_no_number_is_last_in_either_direction(page: Page, sort: str):
    page.goto(f"{page.url}#sort={sort}")
    page.get_by_role("button", name="Show all").click()
    rows = page.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.outcome)")
    assert rows == ["ok"] * 702 + ["failed"] * 78


@pytest.mark.slow
def test_precisions_are_sorted_in_their_own_order_and_equals_stay_in_theirs(page: Page):
    page.locator("th[data-key=precision]").get_by_role("button").click()
    assert labels(page)[:3] == ["net_000 fp32", "net_001 fp32", "net_002 fp32"]
    page.locator("th[data-key=precision]").get_by_role("button").click()
    assert labels(page)[:2] == ["net_000 bf16_pure", "net_001 bf16_pure"]


def test_every_word_that_is_searched_for_must_be_there(page: Page):
    page.get_by_label("search").fill("TF32 net_12")
    assert labels(page) == [f"net_{number} tf32" for number in range(120, 130)]
    assert status(page) == "10 of 780 cases match"
    page.get_by_label("search").fill("boom bf16_pure")
    assert all("bf16_pure" in label for label in labels(page))
    page.get_by_label("search").fill("nothing has this")
    assert labels(page) == []


def test_filters_are_those_in_which_cases_differ_and_hold_together(page: Page):
    assert page.locator(".controls label").evaluate_all("all => all.map((one) => one.firstChild.data)") == [
        "search", "precision", "outcome",
    ]  # fmt: skip
    choose(page, "outcome", "failed")
    choose(page, "precision", "tf32")
    found = labels(page)
    assert found
    assert all(label.endswith(" tf32") for label in found)
    page.get_by_role("button", name="Show everything").click()
    assert status(page).startswith("780 cases")
    assert "=" not in page.url


def test_what_was_chosen_is_in_the_address_and_comes_back_with_it(page: Page):
    choose(page, "precision", "tf32")
    page.get_by_label("search").fill("net_01")
    page.locator("th[data-key=time]").get_by_role("button").click(click_count=2)
    expect(page).to_have_url(re.compile("[#&]q=net_01"))
    assert "precision=tf32" in page.url
    assert "sort=-time" in page.url
    before = labels(page)
    page.reload()
    assert labels(page) == before
    assert page.get_by_label("search").input_value() == "net_01"
    page.goto(page.url.partition("#")[0] + "#precision=fp32")
    assert labels(page)[:2] == ["net_000 fp32", "net_001 fp32"]
    assert page.get_by_label("search").input_value() == ""


@pytest.mark.slow
def test_an_address_that_names_what_is_not_there_shows_everything(page: Page):
    page.goto(f"{page.url}#precision=int8&sort=colour&phase=dreaming")
    assert status(page).startswith("780 cases")


def test_a_link_to_a_row_finds_it_wherever_it_is(page: Page, address: str):
    page.goto(f"{address}#case-777")
    assert labels(page) == [f"net_129 {PRECISIONS[777 % 6]}"]
    expect(page.locator("#case-777")).to_be_in_viewport()
    page.get_by_role("button", name="Show everything").click()
    assert len(labels(page)) == FIRST


@pytest.mark.slow
def test_without_javascript_every_row_is_there(browser: Browser, address: str):
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(address)
    assert plain.locator("tbody tr").count() == WORKLOADS * len(PRECISIONS)
    expect(plain.locator("tbody tr").last).to_be_visible()
    assert plain.locator("main button").count() == 0
    context.close()
