"""JUnit XML, as CI servers show test results: a test case per case of a run, or per finding of a comparison.

The elements and attributes are those of junit-10.xsd of Jenkins' xunit plug-in, which is what surefire writes and what
GitLab, GitHub's reporters and Jenkins read. XML has no control characters: they are written as backslash escapes.
"""

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from ampbench.convert.selection import Selected, defined
from ampbench.metrics import METRICS
from ampbench.verdicts import Comparison, Finding, Verdict

_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML 1.0, 2.2 Characters; the carriage return is one, but parsers read it as a newline."""

_SKIPPED = (Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE)


def run_xml(selected: Selected) -> str:
    """Return a run: a case that failed is an error, one that was skipped is skipped, `time` is what measuring took."""
    stored = selected.stored
    header = stored.header
    environment = header.environment
    seconds: dict[str, float] = {}
    for each in stored.rounds:
        seconds[each.case_id] = seconds.get(each.case_id, 0.0) + each.seconds
    suite = _suite(header.run, timestamp=header.started_at, hostname=environment.host)
    suite.set("time", f"{sum(seconds.get(row['case_id'], 0.0) for row in selected.rows):.3f}")
    _properties(
        suite,
        [
            ("label", header.label),
            ("commit", header.commit or ""),
            ("torch_version", environment.torch_version),
            ("cpu", environment.cpu),
        ],
    )
    for row in selected.rows:
        case_id = row["case_id"]
        test = _test(suite, row["workload"], case_id)
        if case_id in seconds:
            test.set("time", f"{seconds[case_id]:.3f}")
        if row["outcome"] == "failed":
            failure = stored.failures.get(case_id)
            lines = failure.frames if failure else []
            _outcome(test, "error", failure.cause if failure else "failed", row["reason"], lines)
        elif row["outcome"] == "skipped":
            _outcome(test, "skipped", "skipped", row["reason"])
        _output(test, [f"{column.name}: {value!r} {column.unit}" for column, value in defined(row, METRICS.values())])
    return _document(suite)


def comparison_xml(comparison: Comparison) -> str:
    """Return a comparison, a test case per case and metric.

    A regression is a failure, a case that was ok and fails now an error; what is inconclusive or incomparable is
    skipped with the reason, as is a case that one side does not have.
    """
    baseline, candidate = comparison.baseline, comparison.candidate
    suite = _suite(f"{candidate.run} against {baseline.run}")
    differences = [(one.name, f"{one.baseline} -> {one.candidate}") for one in comparison.differences]
    _properties(
        suite,
        [
            ("baseline", baseline.run),
            ("candidate", candidate.run),
            ("interleaved", "yes" if comparison.interleaved else "no"),
            *differences,
        ],
    )
    for finding in comparison.findings:
        test = _test(suite, finding.case.workload, f"{finding.case.case_id} {finding.metric}")
        evidence = _evidence(finding)
        if finding.verdict is Verdict.REGRESSED:
            kind = "error" if finding.kind == "outcome" else "failure"
            _outcome(test, kind, finding.code, finding.reason, evidence)
        elif finding.verdict in _SKIPPED:
            _outcome(test, "skipped", finding.code, f"{finding.verdict}: {finding.reason}")
            _output(test, evidence)
        else:
            _output(test, [f"{finding.verdict}: {finding.reason}", *evidence])
    for side, case_ids in (("baseline", comparison.only_baseline), ("candidate", comparison.only_candidate)):
        for case_id in case_ids:
            test = _test(suite, f"{side} only", case_id)
            _outcome(test, "skipped", "one side", f"only the {side} has this case")
    _output(suite, [comparison.control.sentence, *comparison.notes])
    return _document(suite)


def _evidence(finding: Finding) -> list[str]:
    """Return the numbers of a finding and its remarks, a line each; what is undefined is left out."""
    unit = METRICS[finding.metric].unit if finding.metric in METRICS else ""
    lines = [
        f"{name}: {value!r} {unit}".rstrip()
        for name, value in (("baseline", finding.baseline), ("candidate", finding.candidate))
        if value is not None
    ]
    if finding.change is not None:
        interval = (
            "" if finding.low is None or finding.high is None else f" ({finding.low:+.2%} to {finding.high:+.2%})"
        )
        lines.append(f"change: {finding.change:+.2%}{interval}, threshold {finding.threshold:.2%}")
    return [*lines, *finding.remarks]


def _suite(name: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element("testsuite", {"name": _printable(name)} | _all_printable(attributes))


def _test(suite: ElementTree.Element, workload: str, name: str) -> ElementTree.Element:
    attributes = {"classname": f"ampbench.{workload}", "name": name}
    return ElementTree.SubElement(suite, "testcase", _all_printable(attributes))


def _outcome(test: ElementTree.Element, kind: str, type: str, message: str, lines: Sequence[str] = ()) -> None:
    element = ElementTree.SubElement(test, kind, _all_printable({"type": type, "message": message}))
    element.text = _printable("\n".join(lines)) or None


def _output(parent: ElementTree.Element, lines: Sequence[str]) -> None:
    said = "\n".join(line for line in lines if line)
    if said:
        ElementTree.SubElement(parent, "system-out").text = _printable(said)


def _properties(suite: ElementTree.Element, pairs: Iterable[tuple[str, str]]) -> None:
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in pairs:
        if value:
            ElementTree.SubElement(properties, "property", _all_printable({"name": name, "value": value}))


def _document(suite: ElementTree.Element) -> str:
    """Return the file around a suite, whose counts are made here."""
    counts = {"tests": len(suite.findall("testcase"))}
    counts |= {
        name: len(suite.findall(f"testcase/{kind}")) for kind, name in (("failure", "failures"), ("error", "errors"))
    }
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    root = ElementTree.Element("testsuites", {"name": "ampbench"} | {name: str(n) for name, n in counts.items()})
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _all_printable(attributes: dict[str, str]) -> dict[str, str]:
    return {name: _printable(value) for name, value in attributes.items()}


def _printable(text: str) -> str:
    r"""Return `text` with each character that XML does not have as Python writes it: `\x1b`, `\ufffe`."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
