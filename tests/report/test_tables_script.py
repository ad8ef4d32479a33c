"""Tables in a browser: sorted and searched. Skipped where there is no Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ampbench.records.measured import Failure
from ampbench.report.page import render
from ampbench.report.views import cases
from tests.compared_runs import Times, make_run
from tests.report.materials import CHROMIUM, NO_CHROMIUM, make_material
from tests.stored_runs import make_case

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

WORKLOADS = 130
PRECISIONS = ("fp32", "tf32", "fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure")
FIRST = 100


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
    """Return the case and the precision of each row."""
    return page.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => `${row.cells[0].innerText} ${row.cells[1].innerText}`)"
    )


def status(page: Page) -> str:
    return page.get_by_role("status").inner_text()


def head(page: Page, title: str) -> Locator:
    return page.locator("thead th", has_text=title)


def test_the_first_hundred_rows_are_there_and_the_others_when_asked_for(page: Page):
    assert len(labels(page)) == FIRST
    assert status(page) == "780 cases, the first 100 are shown"
    page.get_by_role("button", name="Show 500 more").click()
    page.get_by_role("button", name="Show 180 more").click()
    assert len(labels(page)) == WORKLOADS * len(PRECISIONS)
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
