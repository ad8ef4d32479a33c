"""JUnit XML of runs and comparisons, against its schema."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema
from converted_runs import BF16, CASE, FAILED, HOSTILE, SKIPPED, TEXT, mixed_run, named_run
from hypothesis import given

from ampbench.convert import formats
from ampbench.records.verdicts import Code, Comparison, ControlVerdict, Difference, Finding, Side, Verdict

SCHEMA = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))
Tests = Mapping[str, ElementTree.Element]


def read(text: str) -> tuple[ElementTree.Element, Tests]:
    """Return the suite and its test cases by name, once the schema has accepted the document."""
    SCHEMA.validate(text)
    suite = ElementTree.fromstring(text)[0]
    tests = {test.attrib["name"]: test for test in suite.findall("testcase")}
    assert len(tests) == int(suite.attrib["tests"])
    return suite, tests


def finding(metric: str = "seconds_median", verdict: Verdict = Verdict.REGRESSED, **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "case": CASE,
        "metric": metric,
        "kind": "time",
        "verdict": verdict,
        "code": Code.BEYOND_THRESHOLD,
        "reason": "12% slower, beyond the threshold",
        "baseline": 1e-3,
        "candidate": 1.12e-3,
        "change": 0.12,
        "low": 0.11,
        "high": 0.13,
        "threshold": 0.02,
    }
    return Finding(**fields | changes)


def comparison(*findings: Finding, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "baseline": Side(run="before", path="before.jsonl"),
        "candidate": Side(run="after", path="after.jsonl"),
        "interleaved": False,
        "differences": [Difference(name="torch", baseline="2.14.0", candidate="2.15.0")],
        "control": ControlVerdict(cells=1, fired=False, sentence="the control did not fire"),
        "findings": findings,
        "means": [],
    }
    return Comparison(**fields | changes)


def test_a_run_has_a_test_case_per_case_and_counts_them() -> None:
    suite, tests = read(formats.run_xml(mixed_run()))
    assert list(tests) == [CASE.case_id, BF16.case_id, FAILED.case_id, SKIPPED.case_id]
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "0",
        "errors": "1",
        "skipped": "1",
    }
    properties = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
    assert properties == {
        "label": "nightly",
        "commit": "0123abc-dirty",
        "torch_version": "2.15.0",
        "cpu": "AMD EPYC",
    }


def test_a_measured_case_passes_with_its_numbers_in_base_units() -> None:
    _, tests = read(formats.run_xml(mixed_run()))
    test = tests[CASE.case_id]
    assert [child.tag for child in test] == ["system-out"]
    lines = (test[0].text or "").splitlines()
    assert "seconds_median: 0.0011 s" in lines
    assert "peak_memory_bytes: 4096 B" in lines
    assert not any(line.startswith("grad_rel_l2") for line in lines)
    assert test.attrib["time"] == "3.000"


def test_a_failed_case_is_an_error_with_its_frames_and_a_skipped_one_is_skipped_with_its_reason() -> None:
    _, tests = read(formats.run_xml(mixed_run()))
    error = tests[FAILED.case_id].find("error")
    assert error is not None
    assert error.attrib == {"type": "exception", "message": "boom <&>"}
    assert error.text == "File a.py\n  x = 1"
    skipped = tests[SKIPPED.case_id].find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"] == "this CPU has no tf32"
    assert "time" not in tests[SKIPPED.case_id].attrib


@pytest.mark.parametrize(
    ("verdict", "kind", "element"),
    [
        (Verdict.REGRESSED, "time", "failure"),
        (Verdict.REGRESSED, "outcome", "error"),
        (Verdict.INCONCLUSIVE, "time", "skipped"),
        (Verdict.INCOMPARABLE, "memory", "skipped"),
        (Verdict.UNCHANGED, "time", None),
        (Verdict.IMPROVED, "accuracy", None),
    ],
)
def test_a_verdict_becomes_an_outcome(verdict: Verdict, kind: str, element: str | None) -> None:
    one = finding(verdict=verdict, kind=kind, reason="because")
    suite, tests = read(formats.comparison_xml(comparison(one)))
    test = tests[f"{CASE.case_id} seconds_median"]
    found = [child for child in test if child.tag != "system-out"]
    assert [child.tag for child in found] == ([element] if element else [])
    assert all("because" in child.attrib["message"] for child in found)
    assert suite.attrib["failures"] == str(int(element == "failure"))
    assert suite.attrib["errors"] == str(int(element == "error"))
    assert suite.attrib["skipped"] == str(int(element == "skipped"))


def test_a_failure_holds_the_evidence() -> None:
    one = finding(remarks=["slow blocks: 2 of 16 became 7 of 16"])
    _, tests = read(formats.comparison_xml(comparison(one)))
    failure = tests[f"{CASE.case_id} seconds_median"].find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "beyond-threshold"
    assert (failure.text or "").splitlines() == [
        "baseline: 0.001 s",
        "candidate: 0.00112 s",
        "change: +12.00% (+11.00% to +13.00%), threshold 2.00%",
        "slow blocks: 2 of 16 became 7 of 16",
    ]


def test_what_is_undefined_is_left_out_of_the_evidence() -> None:
    one = finding(verdict=Verdict.INCOMPARABLE, baseline=None, change=None, low=None, high=None)
    _, tests = read(formats.comparison_xml(comparison(one)))
    output = tests[f"{CASE.case_id} seconds_median"].find("system-out")
    assert output is not None
    assert output.text == "candidate: 0.00112 s"


def test_a_comparison_tells_of_both_runs_their_differences_and_the_control() -> None:
    suite, _ = read(formats.comparison_xml(comparison(finding(), notes=["not interleaved"])))
    assert suite.attrib["name"] == "after against before"
    properties = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
    assert properties == {
        "baseline": "before",
        "candidate": "after",
        "interleaved": "no",
        "torch": "2.14.0 -> 2.15.0",
    }
    output = suite.find("system-out")
    assert output is not None
    assert output.text == "the control did not fire\nnot interleaved"


def test_a_case_of_one_side_is_skipped_and_says_whose_it_is() -> None:
    both = comparison(finding(), only_baseline=[BF16.case_id], only_candidate=[SKIPPED.case_id])
    _, tests = read(formats.comparison_xml(both))
    said = {name: test.find("skipped") for name, test in tests.items()}
    for case_id, side in ((BF16.case_id, "baseline"), (SKIPPED.case_id, "candidate")):
        skipped = said[case_id]
        assert skipped is not None
        assert skipped.attrib["message"] == f"only the {side} has this case"


@given(TEXT)
def test_any_name_gives_valid_xml_and_comes_back(name: str) -> None:
    _, tests = read(formats.run_xml(named_run(name)))
    (found,) = tests
    # XML has no control characters; where there are none, the name comes back as it was
    clean = all(one in "\t\n" or (one >= " " and one not in "\ufffe\uffff") for one in name)
    assert found.startswith(f"{name}[") or not clean


def test_control_characters_are_written_as_escapes() -> None:
    _, tests = read(formats.run_xml(named_run(HOSTILE)))
    (found,) = tests
    assert found.startswith("<&>\"' \t\n\\x00\\x1b\x7f\x85\u2028\\ufffe\U0001f600,;|[]{}#%$\\é[")
    assert "\\r\\ud800" in formats.comparison_xml(comparison(finding(reason="a\r\ud800")))


def test_a_hostile_reason_gives_a_valid_comparison() -> None:
    one = finding(reason=HOSTILE, remarks=[HOSTILE, "]]>"])
    read(formats.comparison_xml(comparison(one, notes=[HOSTILE])))
