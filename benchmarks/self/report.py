"""How long `ampbench report` takes for large runs, how large the page is, and how soon Chromium shows and answers."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from ampbench.core.units import format_bytes, format_seconds
from tests.report.large_runs import write_large_run, write_zoo_run

SIZES = (500, 10_000)
GOALS = {500: ("≤ 3 s", "≤ 2 MB"), 10_000: ("≤ 6 s", "≤ 15 MB")}
GOAL_COMPARED = "≤ 8 s"
ANSWERS = {"sorting": "≤ 100 ms", "searching": "≤ 100 ms"}
REPETITIONS = 3
_TORCH_FREE = """
import sys
from ampbench.__main__ import main
try:
    main()
finally:
    assert not {"torch", "torchvision"} & set(sys.modules), "torch was imported"
"""
"""The command line, which fails where it imported torch."""

_ANSWER = """
([selector, act]) => new Promise((resolve) => {
  const target = document.querySelector(selector);
  const start = performance.now();
  if (act === "click") target.click();
  else {
    target.value = act;
    target.dispatchEvent(new Event("input", { bubbles: true }));
  }
  document.querySelector("#cases table").getBoundingClientRect();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start), 0));
})
"""
"""Milliseconds from a reader's action to the end of the frame that shows it, with layout and painting."""


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield name, figure and goal of each row of the table of docs/performance.md.

    Without a Chromium, a reader's waiting times are left out.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder:
        pages: dict[int, Path] = {}
        for cases in SIZES:
            run = write_large_run(Path(folder) / str(cases), cases)
            pages[cases] = Path(folder) / f"{cases}.html"
            built, size = GOALS[cases]
            yield f"report of {cases:,} cases: built", format_seconds(build_seconds(run, pages[cases])), built
            yield f"report of {cases:,} cases: file", format_bytes(pages[cases].stat().st_size), size
        yield from compared_rows(Path(folder), SIZES[-1])
        yield from zoo_rows(Path(folder) / "zoo")
        if chromium is not None:
            yield from browser_rows(chromium, pages)


def browser_rows(chromium: str, pages: Mapping[int, Path]) -> Iterator[tuple[str, str, str]]:
    """Yield how soon Chromium shows each page, and answers."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for cases, page in pages.items():
            painted, large = format_seconds(first_paint_seconds(browser, page)), cases == SIZES[-1]
            yield f"report of {cases:,} cases: first paint in Chromium", painted, "≤ 1 s" if cases == SIZES[0] else "–"
            for act, answered in answer_seconds(browser, page).items():
                yield f"report of {cases:,} cases: {act}", format_seconds(answered), ANSWERS[act] if large else "–"
        browser.close()


def compared_rows(folder: Path, cases: int) -> Iterator[tuple[str, str, str]]:
    """Yield how long the report of a run against a baseline takes and how large it is, where nothing is equal."""
    old, new = (write_large_run(folder / "compared", cases, run=f"run{seed}", seed=seed) for seed in range(2))
    page = folder / "compared.html"
    built, size = format_seconds(build_seconds(new, page, old)), GOALS[cases][1]
    yield f"report of {cases:,} cases against a baseline: built", built, GOAL_COMPARED
    yield f"report of {cases:,} cases against a baseline: file", format_bytes(page.stat().st_size), size


def zoo_rows(folder: Path, networks: int = 200) -> Iterator[tuple[str, str, str]]:
    """Yield how long the report and `show` of many networks in five precisions take, and how large the page is."""
    run = write_zoo_run(folder, networks)
    page = folder / "zoo.html"
    networks_measured = f"{networks} networks in 5 precisions, {networks // 3} of them in training, too"
    yield f"report of {networks_measured}: built", format_seconds(build_seconds(run, page)), "≤ 5 s"
    yield f"report of {networks_measured}: file", format_bytes(page.stat().st_size), "≤ 4 MB"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", _TORCH_FREE, "show", str(run)], check=True, capture_output=True)
    yield f"show of {networks_measured}", format_seconds(time.perf_counter() - started), "≤ 3 s"


def build_seconds(run: Path, page: Path, baseline: Path | None = None) -> float:
    """Return the wall time of `ampbench report RUN -o PAGE`, the whole command, which must not import torch."""
    started = time.perf_counter()
    against = [] if baseline is None else ["--baseline", str(baseline)]
    command = [sys.executable, "-c", _TORCH_FREE, "report", str(run), *against, "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def first_paint_seconds(browser: Browser, page: Path) -> float:
    """Return the seconds until Chromium first shows something of the page: the median of several windows."""
    seconds = []
    for _ in range(REPETITIONS):
        with browser.new_context(viewport={"width": 1400, "height": 1000}) as context:
            window = context.new_page()
            window.goto(page.as_uri())
            window.wait_for_timeout(100)
            [entry] = window.evaluate(
                "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"
            )
            seconds.append(entry / 1000)
    return sorted(seconds)[REPETITIONS // 2]


def answer_seconds(browser: Browser, page: Path) -> dict[str, float]:
    """Return how long the table of cases takes to show another order or selection: the slowest of several times."""
    worst: dict[str, float] = {}
    with browser.new_context(viewport={"width": 1400, "height": 1000}) as context:
        window = context.new_page()
        window.goto(page.as_uri())
        window.locator("#cases th button").first.wait_for()
        window.locator("#cases table").scroll_into_view_if_needed()
        window.wait_for_timeout(3000)  # charts near the window are drawn by then
        buttons = window.locator("#cases th button").count()
        acts = [("sorting", f"#cases th:nth-child({place + 1}) button", "click") for place in range(buttons)]
        search = "#cases .controls input"
        acts += [("searching", search, text) for text in ("w", "wo", "bf16", "workload_3 ", "")]
        for name, selector, act in acts:
            for _ in range(2):
                passed = window.evaluate(_ANSWER, [selector, act]) / 1000
                worst[name] = max(worst.get(name, 0.0), passed)
    return worst
