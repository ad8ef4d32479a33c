import csv
import io
import json
import math
from dataclasses import replace

from msgspec import structs

from ampbench.core.statement import state
from ampbench.judge.compare import compare
from ampbench.records.changes import Change, ChangeCode, ChangeStatus, Explanation, Remark, Traces
from ampbench.records.measured import Failure
from ampbench.show.comparison import (
    change_text,
    comparison_document,
    comparison_section,
    finding_columns,
    metric_label,
    reason,
)
from ampbench.show.document import csv_text, json_document, markdown
from ampbench.show.terminal import document_lines
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.stored_runs import make_case

FIELDS = [column.key for column in finding_columns({})]
FRESH = noisy(1e-3, 8, seed=5), noisy(1.08e-3, 8, seed=6)


def slower():
    """Compare arms of which the candidate is slower in fp32 and the same in bf16."""
    ours, theirs = arms()
    baseline = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4))), fresh=FRESH[0], header=ours)
    after = Times((FP32, noisy(1.07e-3, seed=1)), (BF16, noisy(5e-4, seed=2)))
    theirs = environment(
        structs.replace(theirs, label="nightly", commit="1234567890abcdef-dirty"), torch_version="2.16.0"
    )
    return compare(baseline, make_run(after, fresh=FRESH[1], header=theirs))


def same():
    return compare(make_run(Times((FP32, noisy(1e-3)))), make_run(Times((FP32, noisy(1e-3, seed=1)))))


def printed(comparison, width=100, show_all=False):
    return "\n".join(line.plain for line in document_lines(comparison_document(comparison, everything=show_all), width))


def comparison_markdown(comparison):
    document = comparison_document(comparison)
    return markdown(document.sections(), answer=document.answer)


def comparison_json(comparison):
    return json_document(comparison_document(comparison).data())


def comparison_csv(comparison):
    document = comparison_document(comparison)
    return csv_text(document.columns, ([*row.values()] for row in document.rows()))


def test_every_surface_tells_the_same_of_a_change():
    for comparison in (slower(), same()):
        rows = json.loads(comparison_json(comparison))["findings"]
        cells = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
        markdown = comparison_markdown(comparison).splitlines()
        assert len(rows) == len(cells) == len(comparison.findings)
        for one, row, cell in zip(comparison.findings, rows, cells, strict=True):
            assert (row["status"], row["code"], row["change"]) == (one.status, one.code, one.change)
            assert (cell["status"], cell["code"], cell["reason"]) == (one.status, one.code, reason(one))
            told = (one.status.value, metric_label(one.metric), change_text(one))
            assert any(all(part in line for part in told) for line in markdown)


def test_numbers_that_are_undefined_are_null_in_json_and_empty_in_csv():
    endless = Change(
        case=FP32, metric="output_rel_l2", kind="accuracy", status=ChangeStatus.REGRESSED,
        code=ChangeCode.BEYOND_THRESHOLD,
        baseline=0.0, candidate=math.nan, change=math.inf, remarks=[state(Remark.OTHER_NUMBERS, other="inputs")] * 2,
    )  # fmt: skip
    comparison = replace(same(), findings=[endless])
    row = json.loads(comparison_json(comparison))["findings"][0]
    assert (row["candidate"], row["change"], row["low"]) == (None, None, None)
    (cells,) = csv.DictReader(io.StringIO(comparison_csv(comparison)))
    assert list(cells) == [name for name in FIELDS if name not in ("facts", "remarks", "details")]
    assert (cells["candidate"], cells["change"]) == ("", "")
    assert cells["reason"] == "any difference counts"
    assert "from none" in printed(comparison)


WHY = ["rms_norm: bf16 → fp32 in 25 modules, such as blocks.0.norm", "2 → 3 casts a step, 1.00 KiB → 2.00 KiB"]
CHANGED = Explanation(Traces.CHANGED, WHY)
UNEXPLAINED = Explanation(Traces.SAME, ["unexplained: the same"])


def blocks(comparison):
    return {block.title.partition(" (")[0]: block for block in comparison_section(comparison).blocks}


def lines(comparison):
    return [block.title for block in comparison_section(comparison).blocks if not block.headers]


def test_the_first_changes_are_shown_all_are_counted_and_outcomes_are_lines():
    cases = [make_case(parameters={"width": width}) for width in range(30)]
    ours, theirs = (make_run(Times(*((case, noisy(1e-3)) for case in cases)), peak_bytes=peak) for peak in (100, 200))
    theirs.failures[cases[0].case_id] = Failure(
        case_id=cases[0].case_id, stage="round", cause="crash", message="signal 11"
    )
    compared = compare(ours, theirs)
    shown = blocks(compared)
    assert len(shown["changed"].rows) == 10
    assert shown["changed"].note == "10 of 29, -v lists the rest"
    assert lines(compared)[0].startswith("1 regressed (outcome), ")
    assert lines(compared)[0].endswith(": ok → failed: crash: signal 11")
    assert [row[0] for row in shown["findings"].rows[:31]] == ["regressed"] * 30 + ["unchanged"]


def test_a_comparison_of_explanations_shows_each_case_and_says_how_many_changed():
    explained = {
        FP32.case_id: UNEXPLAINED,
        BF16.case_id: CHANGED,
        "other": Explanation(Traces.NOT_TRACED, ["not traced in the baseline: x"]),
    }
    only = replace(same(), findings=[], explained=explained, rule_devices=["cpu"])
    assert {row[0] for row in blocks(only)["what differs in the traces"].rows} == explained.keys()
    last = " ".join(printed(only).split("\n\n")[-1].split())
    assert last == ("3 cases explained: 1 changed, 1 the same, 1 not traced; 0 changes of autocast's rules on cpu")
