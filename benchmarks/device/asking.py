"""Items that ask ampbench, or pytest, as a person would, and read back what that stored."""

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ampbench
from ampbench.cli.main import main
from ampbench.core.precisions import PRECISIONS
from ampbench.errors import CASE_FAILED
from ampbench.records.labels import Pending
from ampbench.store import StoredRun, list_runs, read_run
from ampbench.studies.check import DEFECTIVE, OUTCOMES, Checked
from benchmarks.device.running import ROOT, Found, Given, NotHereError

MARGIN = 30.0
"""Seconds before its item's limit at which a run is interrupted, and tells what is left."""
PLANTED = Path(__file__).with_name("planted.py")
DIFFERENCE = 0.05
WITHIN = 0.02
"""How far from the 5 % that were planted the change that is found may lie."""


def asked(given: Given, *arguments: str, seconds: float = 0.0) -> tuple[int, str, list[StoredRun]]:
    """Do a command of ampbench in this process; return its exit code, what it printed, and the runs that it stored.

    After so many `seconds` (0: never) it is interrupted, as by Ctrl-C.
    """
    before = set(list_runs(given.folder))
    printed = io.StringIO()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with contextlib.redirect_stdout(printed):
            code = main([*arguments, *_where(given, arguments[0])])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(printed.getvalue())
    return code, printed.getvalue(), [read_run(path) for path in list_runs(given.folder) if path not in before]


def _where(given: Given, verb: str) -> list[str]:
    device = [] if verb in ("doctor", "report") else ["--device", given.device]
    return [*device, "--results", str(given.folder)]


def verb(given: Given, arguments: Sequence[str]) -> Found:
    """Do a verb of ampbench; it passes with exit code 0 and no failure among what it stored."""
    code, _, runs = asked(given, *arguments)
    failures = [[case, one.cause, one.message] for run in runs for case, one in run.failures.items()]
    lacking = [f"run {run.header.run} is not complete" for run in runs if not run.complete]
    said = f"exit code {code}" if code else "done"
    counted = f", {sum(len(run.cases) for run in runs)} cases" if runs else ""
    return Found(
        code == 0 and not failures and not lacking,
        "; ".join([f"{said}{counted}", *lacking, *([f"{len(failures)} failed"] if failures else [])]),
        ("case", "cause", "what it said"),
        failures,
    )


def run(given: Given, arguments: Sequence[str]) -> Found:
    """Do `ampbench run`; it passes where every case that is not skipped for a reason was measured."""
    most = max(10.0, given.seconds - MARGIN)
    code, _, runs = asked(given, "run", *arguments, "--format", "json", seconds=most)
    if not runs:
        return Found(False, f"nothing was stored, exit code {code}")
    (stored,) = runs
    rows = ampbench.load(stored.path).to_dict("records")
    left = [row for row in rows if row["reason"] in list(Pending)]
    failed = [row for row in rows if row["outcome"] == "failed"]
    skipped = [row for row in rows if row["outcome"] == "skipped" and row not in left]
    measured = [row for row in rows if row["outcome"] == "ok"]
    unlike = [row for row in measured if given.device != "cpu" and row["memory_source"] != "allocator"]
    said = [f"{len(measured)} cases measured, {len(skipped)} skipped, {len(failed)} failed"]
    if left:
        said.append(f"{len(left)} not begun in {most:.0f} s")
    if unlike:
        said.append(f"{len(unlike)} with memory that the allocator did not count")
    reasons = Counter(row["reason"] for row in skipped)
    return Found(
        bool(measured) and not (left or failed or unlike) and code in (0, CASE_FAILED),
        "; ".join(said),
        ("what", "case or cases", "why"),
        [
            *(["failed", row["case_id"], row["reason"]] for row in failed),
            *(["not begun", row["case_id"], row["reason"]] for row in left),
            *(["skipped", str(count), reason] for reason, count in reasons.items()),
        ],
    )


def passes(given: Given, arguments: Sequence[str]) -> Found:
    """Do `ampbench run` until its time is up; it passes where every case that is not skipped has memory and errors.

    How many cases were timed is told.
    """
    most = max(10.0, given.seconds - MARGIN)
    code, _, runs = asked(given, "run", *arguments, "--format", "json", seconds=most)
    if not runs:
        return Found(False, f"nothing was stored, exit code {code}")
    (stored,) = runs
    wanted = [case for case in stored.cases if case not in stored.skips]
    failed = [[case, "failed", one.message] for case, one in stored.failures.items()]
    ran = [case for case in wanted if case in stored.memory and case in stored.divergence]
    left = [[case, "not reached", ""] for case in wanted if case not in ran and case not in stored.failures]
    timed = len({one.case_id for one in stored.rounds})
    said = f"{len(ran)} cases ran, {len(stored.skips)} skipped, {len(failed)} failed; {timed} timed"
    if left:
        said += f"; {len(left)} not reached in {most:.0f} s"
    good = bool(ran) and not (failed or left) and code in (0, CASE_FAILED)
    return Found(good, said, ("case", "outcome", "why"), [*failed, *left])


def tests(given: Given, file: str) -> Found:
    """Run a file of tests/device by pytest; warnings of a driver or a library fail none of them."""
    report = given.folder / f".{Path(file).stem}.xml"
    command = [
        sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", "-p", "no:xdist",
        f"--junit-xml={report}", file,
    ]  # fmt: skip
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not report.exists():
        return Found(False, f"pytest ended with exit code {code}")
    cases = list(ElementTree.parse(report).iter("testcase"))
    report.unlink()
    outcomes = Counter(_outcome(case) for case in cases)
    told = [
        [case.get("name", ""), outcome, why.partition("\n")[0][:300]]
        for case in cases
        for outcome, why in _words(case)
    ]  # fmt: skip
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    if code == 0 and cases and set(outcomes) == {"skipped"}:
        raise NotHereError(f"{said}: {told[0][2]}")
    good = code == 0 and outcomes["passed"] > 0
    return Found(good, said or f"no test, exit code {code}", ("test", "outcome", "why"), told)


def _outcome(case: ElementTree.Element) -> str:
    return next((outcome for outcome, _ in _words(case)), "passed")


def _words(case: ElementTree.Element) -> Iterator[tuple[str, str]]:
    names = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    for child in case:
        if child.tag in names:
            yield names[child.tag], child.get("message", "")


def check(given: Given) -> Found:
    """Look for known defects; it passes where each check came to an outcome. What is defective is torch's."""
    code, _, runs = asked(given, "check")
    found = [one for run in runs for one in run.every(Checked)]
    counts = Counter(one.outcome for one in found)
    failures = [[case, "failed", one.message] for run in runs for case, one in run.failures.items()]
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    return Found(
        bool(found) and not failures and code == 0,
        f"{said} of {len(found)} checks" + (f"; {len(failures)} failed" if failures else ""),
        ("check", "outcome", "seen"),
        [*failures, *([one.check, one.outcome, one.seen] for one in found if one.outcome == DEFECTIVE)],
    )


def control(given: Given, arguments: Sequence[str]) -> Found:
    """Measure the device against itself; it passes without a false alarm."""
    most = f"{max(10.0, given.seconds - 2 * MARGIN):.0f}"
    code, text, _ = asked(given, "ab", *arguments, "--budget", most, "--json")
    told: dict[str, Any] = json.loads(text)
    alarms, cases = told["false_alarms"], told["cases"]
    spreads = sorted(told["spreads"].values())
    middle = f"; middle spread of blocks {spreads[len(spreads) // 2]:.2%}" if spreads else ""
    return Found(
        code == 0 and not alarms and cases > 0,
        f"{len(alarms)} false alarms in {cases} cases over {told['blocks']} blocks{middle}",
        ("case", "spread of blocks", "called changed"),
        [[case, f"{spread:.2%}", "yes" if case in alarms else ""] for case, spread in told["spreads"].items()],
    )


def planted(given: Given, changed: int, arguments: Sequence[str] = ()) -> Found:
    """Let `ab` look for one layer more in twenty, or, with `changed` 0, for nothing: the same under another name."""
    arm = "changed" if changed else "renamed"
    most = f"{max(10.0, given.seconds - 2 * MARGIN):.0f}"
    code, text, _ = asked(
        given, "ab", f"{PLANTED}:layers", "--baseline", f"{arm}=0", "--candidate", f"{arm}=1", "--phase", "inference",
        "--precision", "fp32", "--precision", "bf16_autocast", "--metric", "time", "--min-run-time", "0.3",
        "--budget", most, "--json", *arguments,
    )  # fmt: skip
    times = [one for one in json.loads(text)["findings"] if one["metric"] == "seconds_median"]
    if changed:
        good = [one for one in times if one["status"] == "regressed" and abs(one["change"] - DIFFERENCE) <= WITHIN]
    else:
        good = [one for one in times if one["status"] not in ("regressed", "improved")]
    said = "; ".join(f"{_precision(one)}: {one['status']}, {_percent(one['change'])}" for one in times)
    return Found(
        bool(times) and len(good) == len(times) and code == 0,
        said or f"no case was compared, exit code {code}",
        ("case", "verdict", "change", "95% interval", "reason"),
        [
            [one["case_id"], one["status"], _percent(one["change"]),
             f"{_percent(one['low'])} to {_percent(one['high'])}", one["reason"]]
            for one in times
        ],
    )  # fmt: skip


def _precision(finding: dict[str, Any]) -> str:
    return next(word for word in finding["case_id"].split("/") if word in PRECISIONS)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.2%}"


def report(given: Given) -> Found:
    """Write the page of all runs of the folder."""
    page = given.folder / "report.html"
    code, _, _ = asked(given, "report", *map(str, list_runs(given.folder)), "-o", str(page))
    size = page.stat().st_size if page.exists() else 0
    return Found(code == 0 and size > 0, f"{size / 2**20:.2f} MiB" if size else f"no page, exit code {code}")
