"""Formats that other programs read, each a function from the chosen cases of a run.

*Bencher Metric Format*: benchmark, then measure, then a value and its bounds, if known. Source:
https://bencher.dev/docs/reference/bencher-metric-format with its JSON schema https://bencher.dev/bmf.json.

*github-action-benchmark*: a JSON list of numbers that should fall. Source: the README of
benchmark-action/github-action-benchmark, "Using Custom Benchmarks", and `extractCustomBenchmarkResult` of its
src/extract.ts. Its alarms are ratios of two values, hence only metrics that comparisons judge.

*JUnit XML*: a test case per case of a run, or per change of a comparison. Elements and attributes are those of
junit-10.xsd of Jenkins' xunit plug-in, which GitLab, GitHub's reporters and Jenkins read. XML has no control
characters: they are written as backslash escapes.

*Parquet*: the frame of `ampbench.load` with columns of the runs; each column has one type.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from ampbench.core.metrics import COLUMNS, GATED, METRICS, Column
from ampbench.errors import NothingToRunError, StoreError, UsageError
from ampbench.judge import frame
from ampbench.records.changes import OUTCOME, Change, ChangeStatus, Comparison
from ampbench.records.run import Header
from ampbench.show.comparison import control_line, notes, reason, remarks
from ampbench.show.rows import Row
from ampbench.store import StoredRun, read_header

if TYPE_CHECKING:
    import pandas as pd

MEASURES = [column for column in METRICS.values() if column.better is not None]
"""The metrics of `bencher`."""
SMALLER = [METRICS[name] for name in GATED if name in METRICS and METRICS[name].better == "lower"]
"""The metrics of `github-smaller`."""


def defined(row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
    """Yield each of the metrics `columns` that has a finite value in `row`, with the value in its base unit."""
    for column in columns:
        value = row[column.name]
        if value is not None and math.isfinite(value):
            yield column, value


def bencher(_: StoredRun, rows: Sequence[Row]) -> str:
    """Return measured cases; `seconds_median` has the bounds of its interval (95%; asv's 99%)."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        measures = {column.name: {"value": value} for column, value in defined(row, MEASURES)}
        if "seconds_median" in measures and row["seconds_low"] is not None:
            measures["seconds_median"] |= {"lower_value": row["seconds_low"], "upper_value": row["seconds_high"]}
        if measures:
            benchmarks[row["case_id"]] = measures
    return json.dumps(benchmarks, indent=1, allow_nan=False)


def github_smaller(stored: StoredRun, rows: Sequence[Row]) -> str:
    """Return the metrics that should fall, for the tool `customSmallerIsBetter`."""
    header, environment = stored.header, stored.header.environment
    extra = f"run: {header.run}\ntorch: {environment.torch_version}\nhost: {environment.host} ({environment.cpu})"
    entries = []
    for row in rows:
        rounds = "" if row["rounds"] is None else f"rounds: {row['rounds']}\n"
        for column, value in defined(row, SMALLER):
            entry = {"name": f"{row['case_id']} {column.name}", "unit": column.unit, "value": value}
            if column.name == "seconds_median" and row["seconds_low"] is not None:
                # the action reads a number behind the sign
                entry["range"] = f"± {(row['seconds_high'] - row['seconds_low']) / 2:.3g}"
            entries.append(entry | {"extra": rounds + extra})
    return json.dumps(entries, indent=1, allow_nan=False)


_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0, 2.2 Characters; the carriage return is one, but parsers read it as a newline."""


class JunitTest(NamedTuple):
    """A test case of JUnit: `kind` is "error", "failure" or "skipped", "" where it passed.

    An error or a failure has the `detail` as its text, other tests have it as their output.
    """

    classname: str
    name: str
    kind: str = ""
    type: str = ""
    message: str = ""
    detail: Sequence[str] = ()
    output: Sequence[str] = ()
    seconds: float | None = None


def junit(stored: StoredRun, rows: Sequence[Row]) -> str:
    """Return a run: a failed case is an error, a skipped case skipped, `time` the seconds of its rounds."""
    header, environment = stored.header, stored.header.environment
    seconds: dict[str, float] = {}
    for timing in stored.rounds:
        seconds[timing.case_id] = seconds.get(timing.case_id, 0.0) + timing.seconds
    tests = []
    for row in rows:
        case_id, failure = row["case_id"], stored.failures.get(row["case_id"])
        kind = {"failed": "error", "skipped": "skipped"}.get(row["outcome"], "")
        tests.append(
            JunitTest(
                row["workload"],
                case_id,
                kind,
                type=failure.cause if failure else row["outcome"],
                message=row["reason"],
                detail=failure.frames if failure else [],
                output=[f"{column.name}: {value!r} {column.unit}" for column, value in defined(row, METRICS.values())],
                seconds=seconds.get(case_id),
            )
        )
    properties = {
        "label": header.label,
        "commit": header.commit or "",
        "torch_version": environment.torch_version,
        "cpu": environment.cpu,
    }
    total = f"{sum(test.seconds or 0.0 for test in tests):.3f}"
    return _document(header.run, properties, tests, timestamp=header.started_at, hostname=environment.host, time=total)


def junit_of_comparison(comparison: Comparison) -> str:
    """Return a comparison, a test case per case and metric.

    A regression is a failure, a case that fails now an error; inconclusive and incomparable changes, and cases of one
    side only, are skipped with the reason.
    """
    baseline, candidate = comparison.baseline, comparison.candidate
    tests = [_test_of(change) for change in comparison.findings]
    for side, case_ids in (("baseline", comparison.only_baseline), ("candidate", comparison.only_candidate)):
        message = f"only the {side} has this case"
        tests += [JunitTest(f"{side} only", case_id, "skipped", "one side", message) for case_id in case_ids]
    properties = {
        "baseline": baseline.run,
        "candidate": candidate.run,
        "interleaved": "yes" if comparison.interleaved else "no",
        **{differs.name: f"{differs.baseline} -> {differs.candidate}" for differs in comparison.differences},
    }
    output = [control_line(comparison.control), *notes(comparison)]
    return _document(f"{candidate.run} against {baseline.run}", properties, tests, output)


def _test_of(change: Change) -> JunitTest:
    """Return the test case of a change, with its numbers and remarks, without undefined ones."""
    unit = METRICS[change.metric].unit if change.metric in METRICS else ""
    sides = {"baseline": change.baseline, "candidate": change.candidate}
    lines = [f"{name}: {value!r} {unit}".rstrip() for name, value in sides.items() if value is not None]
    if change.change is not None:
        known = change.low is not None and change.high is not None
        interval = f" ({change.low:+.2%} to {change.high:+.2%})" if known else ""
        lines.append(f"change: {change.change:+.2%}{interval}, threshold {change.threshold:.2%}")
    lines += remarks(change)
    why, name = reason(change), f"{change.case.case_id} {change.metric}"
    if change.status is ChangeStatus.REGRESSED:
        kind = "error" if change.kind == OUTCOME else "failure"
        return JunitTest(change.case.workload, name, kind, change.code, why, detail=lines)
    text = f"{change.status}: {why}"
    if change.status in (ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE):
        return JunitTest(change.case.workload, name, "skipped", change.code, text, output=lines)
    return JunitTest(change.case.workload, name, output=[text, *lines])


def _document(
    name: str, properties: Mapping[str, str], tests: Sequence[JunitTest], output: Sequence[str] = (), **attributes: str
) -> str:
    """Return the file of a suite with its test cases, and with the `properties` that are not empty."""
    kinds = [test.kind for test in tests]
    counts = {"tests": str(len(tests)), "failures": str(kinds.count("failure")), "errors": str(kinds.count("error"))}
    root = ElementTree.Element("testsuites", {"name": "ampbench", **counts})
    skipped = str(kinds.count("skipped"))
    suite = _add(root, "testsuite", name=name, **attributes, **counts, skipped=skipped)
    parent = _add(suite, "properties")
    for key, value in properties.items():
        if value:
            _add(parent, "property", name=key, value=value)
    for test in tests:
        took = {} if test.seconds is None else {"time": f"{test.seconds:.3f}"}
        element = _add(suite, "testcase", classname=f"ampbench.{test.classname}", name=test.name, **took)
        if test.kind:
            _add(element, test.kind, "\n".join(test.detail), type=test.type, message=test.message)
        _output(element, test.output)
    _output(suite, output)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _output(parent: ElementTree.Element, lines: Iterable[str]) -> None:
    if text := "\n".join(filter(None, lines)):
        _add(parent, "system-out", text)


def _add(parent: ElementTree.Element, tag: str, text: str = "", /, **attributes: str) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, {name: _printable(value) for name, value in attributes.items()})
    element.text = _printable(text) or None
    return element


def _printable(text: str) -> str:
    r"""Return `text` with characters that XML lacks escaped as in Python: `\x1b`, `\ufffe`."""
    return _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


LONGEST = 200
"""The most characters of a list of names in a message."""


def read_json(path: Path, program: str) -> tuple[bytes, Any]:
    """Return the bytes of a file of another program and the document in them; raises `StoreError` naming the file."""
    try:
        data = path.read_bytes()
        return data, json.loads(data)  # msgspec refuses NaN, which these programs write
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: no whole JSON, so it was cut or is no file of {program}: {error}") from None


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, cut at `LONGEST` characters; "none" without any."""
    text = ", ".join(names) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


RUN_COLUMNS = (
    "started_at", "label", "commit", "committed_at", "program", "ampbench_version", "python_version", "cuda_version",
    "host", "system", "cpu", "cpu_count", "memory_bytes", "threads", "seed",
)  # fmt: skip
"""The columns that are the same in all rows of a run."""
_WHOLE = {"cpu_count", "memory_bytes", "threads", "seed", *(name for name, column in COLUMNS.items() if column.whole)}


def cases_of(files: Sequence[Path]) -> tuple["pd.DataFrame", list[Path]]:
    """Return the cases of the runs in `files`, and the files whose last line is cut.

    A column has one type, whatever its values: text, whole numbers or floats. Raises `NothingToRunError` without any
    case, and as `ampbench.load` does.
    """
    import pandas as pd

    tables, cut = [], []
    for file, cases in frame.judged(files):
        tables.append(cases.to_pandas().assign(**run_values(read_header(file))))
        cut += [file] if cases.stored.cut else []
    table = pd.concat(tables, ignore_index=True)
    types = {str(name): "string" for name in table if table[name].dtype == object}
    types |= {name: "Int64" if name in _WHOLE else "string" for name in (*RUN_COLUMNS, *_WHOLE)}
    if table.empty:
        raise NothingToRunError("there is no case")
    return table.astype(types), cut


def run_values(header: Header) -> dict[str, Any]:
    """Return the value of each of `RUN_COLUMNS` for a run."""
    values = {"program": header.imported.program if header.imported else "ampbench", "seed": header.settings.seed}
    values |= {name: getattr(header, name) for name in RUN_COLUMNS if hasattr(header, name)}
    return {name: values[name] if name in values else getattr(header.environment, name) or None for name in RUN_COLUMNS}


def parquet(table: "pd.DataFrame") -> bytes:
    """Return cases as a Parquet file; `UsageError` without pyarrow."""
    try:
        written: bytes = table.to_parquet(engine="pyarrow", index=False)
    except ImportError:
        raise UsageError('Parquet needs pyarrow: pip install "ampbench[parquet]"') from None
    return written
