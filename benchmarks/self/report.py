"""How long `ampbench report` takes for large runs, how large the page is, and how soon Chromium shows and answers."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from ampbench.core.units import format_bytes, format_seconds
from benchmarks.self.load import write_run

CASES = 10_000
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
    report = f"report of {CASES:,} cases"
    with tempfile.TemporaryDirectory() as folder:
        page, compared = Path(folder) / "page.html", Path(folder) / "compared.html"
        old, new = (write_run(Path(folder), CASES, seed=seed, run=f"run{seed}") for seed in range(2))
        yield f"{report}: built", format_seconds(build_seconds(new, page)), "≤ 6 s"
        yield f"{report} against a baseline: built", format_seconds(build_seconds(new, compared, old)), "≤ 8 s"
        for name, file in ((report, page), (f"{report} against a baseline", compared)):
            yield f"{name}: file", format_bytes(file.stat().st_size), "≤ 15 MB"
        if chromium is not None:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                yield f"{report}: first paint in Chromium", format_seconds(first_paint_seconds(browser, page)), "–"
                for act, answered in answer_seconds(browser, page).items():
                    yield f"{report}: {act}", format_seconds(answered), "≤ 100 ms"
                browser.close()


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
