"""What other programs read of runs, each format against its documented shape or its schema.

Bencher Metric Format and JUnit XML; which cases of a run are converted, and which of their numbers.
"""

import csv
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st

from ampbench.cli.main import main
from ampbench.convert import FORMATS, written
from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.store import StoredRun
from tests.compared_runs import Times, make_run
from tests.stored_runs import make_case, make_header

CASE, BF16, FAILED, SKIPPED = map(make_case, ("fp32", "bf16_pure", "fp16_pure", "tf32"))


def stored_run(*times: tuple[Case, Sequence[float]], **header: Any) -> StoredRun:
    return make_run(Times(*times), header=make_header(**header), peak_bytes=4096, output_rel_l2=2e-3)


def mixed_run() -> StoredRun:
    """Return a run of two measured cases, one that failed and one that was skipped."""
    message = {"cause": "exception", "message": "boom <&>", "frames": ["File a.py", "  x = 1"]}
    failure = Failure(case_id=FAILED.case_id, stage="round", **message)
    skip = Skip(case_id=SKIPPED.case_id, reason="this CPU has no tf32")
    times = (CASE, [1.0e-3, 1.1e-3, 1.2e-3]), (BF16, [5e-4, 6e-4, 5e-4, 9e-4]), (FAILED, []), (SKIPPED, [])
    run = stored_run(*times, commit="0123abc-dirty", label="nightly")
    return replace(run, failures={FAILED.case_id: failure}, skips={SKIPPED.case_id: skip})


class Metric(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A metric as https://bencher.dev/bmf.json has it, and strictly no more."""

    value: float
    lower_value: float | msgspec.UnsetType = msgspec.UNSET
    upper_value: float | msgspec.UnsetType = msgspec.UNSET


def read(stored: StoredRun) -> dict[str, dict[str, Metric]]:
    return msgspec.json.decode(written(stored, "bencher")[0], type=dict[str, dict[str, Metric]])


def test_a_run_has_a_benchmark_per_measured_case_with_its_metrics_as_measures() -> None:
    found = read(mixed_run())
    assert list(found) == [CASE.case_id, BF16.case_id]
    measures = found[CASE.case_id]
    assert measures["seconds_median"].value == 1.1e-3
    assert measures["peak_memory_bytes"].value == 4096
    assert measures["output_rel_l2"].value == 2e-3
    assert measures["items_per_second"].value == 8 / 1.1e-3


SCHEMA = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))
Tests = Mapping[str, ElementTree.Element]


def suite_of(text: str) -> tuple[ElementTree.Element, Tests]:
    """Return the suite and its test cases by name, once the schema has accepted the document."""
    SCHEMA.validate(text)
    suite = ElementTree.fromstring(text)[0]
    tests = {test.attrib["name"]: test for test in suite.findall("testcase")}
    assert len(tests) == int(suite.attrib["tests"])
    return suite, tests


def test_a_run_has_a_test_case_per_case_and_counts_them() -> None:
    suite, tests = suite_of(written(mixed_run(), "junit")[0])
    assert list(tests) == [CASE.case_id, BF16.case_id, FAILED.case_id, SKIPPED.case_id]
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "0",
        "errors": "1",
        "skipped": "1",
    }
    properties = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
    assert properties == {"label": "nightly", "commit": "0123abc-dirty", "torch_version": "2.15.0", "cpu": "AMD EPYC"}


def test_a_failed_case_is_an_error_with_its_frames_and_a_skipped_one_is_skipped_with_its_reason() -> None:
    _, tests = suite_of(written(mixed_run(), "junit")[0])
    error = tests[FAILED.case_id].find("error")
    assert error is not None
    assert error.attrib == {"type": "exception", "message": "boom <&>"}
    assert error.text == "File a.py\n  x = 1"
    skipped = tests[SKIPPED.case_id].find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"] == "this CPU has no tf32"
    assert "time" not in tests[SKIPPED.case_id].attrib


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))  # lone surrogates are escaped as it is written
@settings(max_examples=25)
def test_any_name_gives_valid_xml_and_comes_back(name: str) -> None:
    _, tests = suite_of(written(stored_run((make_case(workload=name), [1e-3, 1.1e-3, 1.2e-3])), "junit")[0])
    (found,) = tests
    # XML has no control characters; where there are none, the name comes back as it was
    clean = all(one in "\t\n" or (one >= " " and one not in "\ufffe\uffff") for one in name)
    assert found.startswith(f"{name}[") or not clean


def test_the_help_and_the_page_name_each_format(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # a narrow terminal cuts names
    assert main(["convert", "--help"]) == 0
    helped = " ".join(capsys.readouterr().out.split())
    page = (Path(__file__).parents[2] / "docs" / "convert.md").read_text(encoding="utf-8")
    for name in FORMATS:
        assert f"{name}, " in helped or f"{name} or " in helped, "name it in the help of --to, cli/convert.py"
        assert f"\n| `{name}` |" in page, "add a row to docs/convert.md"


def compare(folder: Path, *arguments: str) -> str:
    """Run the real `pytest-benchmark compare`."""
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Failed to load" not in done.stderr
    return done.stdout


def test_pytest_benchmark_compares_two_of_our_files(tmp_path: Path) -> None:
    (tmp_path / "first.json").write_text(written(mixed_run(), "pytest-benchmark")[0])
    slower = stored_run((CASE, [2e-3, 2.2e-3, 2.4e-3]))
    (tmp_path / "second.json").write_text(written(slower, "pytest-benchmark")[0])
    said = compare(tmp_path, "first.json", "second.json", "--csv=table.csv")
    for shown in (f"{CASE.case_id} (first)", f"{CASE.case_id} (second)", f"{BF16.case_id} (first)"):
        assert shown in said
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["median"]) for row in rows) == pytest.approx([5.5e-4, 1.1e-3, 2.2e-3])
    assert {row["param:precision"] for row in rows} == {"fp32", "bf16_pure"}
