import csv
import io
import json
import math
from dataclasses import replace

import pytest
from msgspec import structs

from ampbench.core.statement import state
from ampbench.judge.compare import compare
from ampbench.records.changes import (
    Change,
    ChangeCode,
    ChangeStatus,
    DefectChange,
    Detectable,
    Explanation,
    Remark,
    SelfComparison,
    Traces,
)
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleChange
from ampbench.show import comparison as show
from ampbench.show.changes import change_text, control_line, metric_label, reason
from ampbench.show.comparison import (
    comparison_csv,
    comparison_json,
    comparison_lines,
    comparison_markdown,
    control_document,
    finding_columns,
    verdict,
)
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.stored_runs import make_case, make_header

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
    return "\n".join(line.plain for line in comparison_lines(comparison, width, show_all))


def test_the_terminal_shows_what_is_compared_what_changed_and_ends_with_it_in_one_line():
    text = printed(slower())
    assert "baseline   base · torch 2.15.0 · arm here" in text
    assert "candidate  new · nightly · torch 2.16.0 · commit 1234567-dirty · arm here" in text
    assert "differences: torch 2.15.0 → 2.16.0; commit none → 1234567-dirty" in text
    assert "measured in turns: both in the same blocks" in text
    assert "no control" in text
    (row,) = [line for line in text.splitlines() if line.startswith("regressed")]
    assert row.split()[1:4] == ["linear_chain", "fp32", "time"]
    assert "certainly over 2%, 16 blocks, confirmed by 8 fresh ones" in text
    assert "unchanged: typical time 1, memory 2, accuracy 4 (--all lists them)" in text
    last = " ".join(text.split("\n\n")[-1].split())
    assert last.startswith("1 regressed (time 1), 7 unchanged: linear_chain fp32, time +8.")


def test_everything_is_listed_where_it_is_asked_for():
    text = printed(slower(), show_all=True)
    assert sum(line.startswith("unchanged ") for line in text.splitlines()) == 7
    assert "--all" not in text


def test_runs_that_are_not_interleaved_are_said_to_be_so_and_equal_ones_to_have_changed_in_nothing():
    text = printed(same())
    assert "not measured in turns: " in text
    assert "the environments are the same in all that is recorded" in text
    assert text.endswith("nothing changed: 4 unchanged")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_prose_fits_the_terminal_and_the_interval_goes_first(width):
    lines = comparison_lines(slower(), width)
    assert all(len(line.plain) <= max(width, 80) for line in lines)
    header = next(line.plain for line in lines if line.plain.startswith("verdict"))
    assert ("interval" in header) is (width >= 80)


def test_differences_that_keep_times_from_being_compared_say_so_and_alike_findings_are_one_line():
    cases = [make_case(parameters={"width": width}) for width in range(6)]
    times = Times(*((case, noisy(1e-3)) for case in cases))
    text = printed(compare(make_run(times), make_run(times, header=environment(make_header(), threads=1))))
    assert "number of threads 2 → 1 (times are not comparable)" in text
    assert "incomparable: time, 6 findings: measured differently: number of threads 2 → 1" in text
    assert text.endswith("no change is certain: 6 incomparable, 18 unchanged")


def test_many_undecided_findings_are_cut_and_what_changed_never_is():
    noise = [make_case(parameters={"width": width}) for width in range(30)]
    ours = make_run(Times(*((case, noisy(1e-3, 4, 0.1, seed)) for seed, case in enumerate(noise))), peak_bytes=100)
    theirs = make_run(
        Times(*((case, noisy(1e-3, 4, 0.1, seed + 99)) for seed, case in enumerate(noise))), peak_bytes=200
    )
    text = printed(compare(ours, theirs))
    assert sum(line.startswith("regressed ") for line in text.splitlines()) == 30
    assert sum(line.startswith("inconclusive ") for line in text.splitlines()) == show.SHOWN
    assert "10 more inconclusive (--all lists them)" in text


def test_cases_of_one_side_are_named():
    ours, theirs = make_run(Times((FP32, noisy(1e-3)))), make_run(Times((FP32, noisy(1e-3)), (BF16, [1e-3])))
    assert f"only in the candidate: {BF16.case_id}" in " ".join(printed(compare(ours, theirs)).split())
    assert "only in the baseline" in printed(compare(theirs, ours))


def test_markdown_begins_with_the_verdict_and_folds_the_details():
    text = comparison_markdown(slower())
    first, second, title, table, *_ = text.split("\n\n")
    assert first.startswith("**1 regressed (time 1), 7 unchanged: linear_chain fp32, time +8.")
    assert "base · torch 2.15.0" in second
    assert "→ new · nightly" in second
    assert title == "### changed (1)"
    assert table.splitlines()[1] == "| :-- | :-- | :-- | --: | --: | --: | --: | :-- |"
    assert len(table.splitlines()) == 3
    assert text.count("<details>") == text.count("</details>") == 3
    assert "<summary>unchanged (7)</summary>" in text
    assert "| torch 2.15.0 → 2.16.0 |" in text


def test_markdown_tells_what_must_not_be_missed_outside_of_the_details():
    text = comparison_markdown(same())
    assert text.startswith("**nothing changed: 4 unchanged**")
    assert "> not measured in turns: " in text.partition("<details>")[0]


def test_markdown_keeps_what_cannot_be_judged_apart_from_what_changed():
    ours, theirs = arms()
    base = make_run(Times((FP32, noisy(1e-3))), control=noisy(1.07e-3, seed=2), header=ours)
    text = comparison_markdown(compare(base, make_run(Times((FP32, noisy(1e-3, seed=1))), header=theirs)))
    head = text.partition("<details>")[0]
    assert "### not judged: the control fired or the machine was not fit (1)\n\n| verdict |" in head


def test_arms_of_two_precisions_are_called_by_the_candidates():
    ours, theirs = arms(precision="bf16_autocast")
    fresh = {"fresh": noisy(1e-3, 8, seed=5)}, {"fresh": noisy(2e-3, 8, seed=6)}
    base = make_run(Times((FP32, noisy(1e-3))), header=ours, **fresh[0])
    text = printed(compare(base, make_run(Times((BF16, noisy(2e-3))), header=theirs, **fresh[1])))
    assert "linear_chain bf16_autocast" in text
    assert "linear_chain fp32" not in text
    assert "geometric means over cases, by the baseline's precision, candidate / baseline - 1" in text


def test_markdown_stays_within_what_a_comment_holds(monkeypatch):
    monkeypatch.setattr(show, "ROWS", 2)
    text = comparison_markdown(slower())
    assert "2 of 7" in text


def test_json_is_one_object_with_a_flat_row_per_finding():
    comparison = slower()
    document = json.loads(comparison_json(comparison))
    assert document["interleaved"] is True
    assert document["baseline"]["run"] == "base"
    control = {"cells": 0, "fired": False, "code": "none", "facts": {}}
    assert document["control"] == control | {"sentence": control_line(comparison.control)}
    row = document["findings"][0]
    assert list(row) == FIELDS
    assert (row["case_id"], row["workload"], row["metric"], row["kind"]) == (
        FP32.case_id, "linear_chain", "seconds_median", "time",
    )  # fmt: skip
    assert (row["status"], row["code"]) == ("regressed", "beyond-threshold")
    assert row["change"] == comparison.findings[0].change
    assert row["remarks"] == []
    assert row["details"]["slow_share_baseline"] == 0.0


def test_every_surface_tells_the_same_of_a_change():
    for comparison in (slower(), same()):
        rows = json.loads(comparison_json(comparison))["findings"]
        cells = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
        lines, markdown = printed(comparison, show_all=True).splitlines(), comparison_markdown(comparison).splitlines()
        assert len(rows) == len(cells) == len(comparison.findings)
        for one, row, cell in zip(comparison.findings, rows, cells, strict=True):
            assert (row["status"], row["code"], row["change"]) == (one.status, one.code, one.change)
            assert (cell["status"], cell["code"], cell["reason"]) == (one.status, one.code, reason(one))
            told = (one.status.value, metric_label(one.metric), change_text(one))
            assert any(all(part in line for part in told) for line in lines)
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
    assert list(cells) == FIELDS
    assert (cells["candidate"], cells["change"]) == ("", "")
    assert cells["reason"] == "output error where there was none; the same code should give equal numbers"
    assert cells["remarks"] == "; ".join(["other inputs: the accuracy may differ for that"] * 2)
    assert json.loads(cells["details"]) == {}
    assert "from none" in printed(comparison)


def test_a_failure_is_the_first_thing_that_is_said():
    ours, theirs = make_run(Times((FP32, noisy(1e-3)))), make_run(Times((FP32, noisy(1e-3))))
    theirs.failures[FP32.case_id] = Failure(case_id=FP32.case_id, stage="round", cause="crash", message="signal 11")
    assert verdict(compare(ours, theirs)) == "1 regressed (outcome 1): linear_chain fp32, fails now"
    assert verdict(compare(theirs, ours)).startswith("1 improved (outcome 1), ")


WHY = ["rms_norm: bf16 → fp32 in 25 modules, such as blocks.0.norm", "2 → 3 casts a step, 1.00 KiB → 2.00 KiB"]
CHANGED = Explanation(Traces.CHANGED, WHY)
UNEXPLAINED = Explanation(Traces.SAME, ["unexplained: the same"])
RULES = [
    RuleChange(op="aten::rms_norm", device=device, dtypes=["float16", "bfloat16"], field="observed", before="unlisted",
               after="float32")
    for device in ("cuda", "xpu")
]  # fmt: skip


def test_what_explains_a_case_stands_under_its_first_regressed_finding():
    text = printed(replace(slower(), explained={FP32.case_id: CHANGED, BF16.case_id: UNEXPLAINED}))
    lines = text.splitlines()
    (row,) = [place for place, line in enumerate(lines) if line.startswith("regressed")]
    assert lines[row + 2 : row + 4] == [f"  {sentence}" for sentence in WHY]
    assert "unexplained" not in text  # nothing changed in that case: it is there for those who ask
    assert "unexplained: the same" in printed(replace(slower(), explained={BF16.case_id: UNEXPLAINED}), show_all=True)


def test_changed_rules_have_a_section_of_their_own_where_nothing_regressed_too():
    text = printed(replace(same(), rule_changes=RULES, rule_devices=["cuda", "xpu"]))
    assert "rules of autocast changed (1)\n  rms_norm on cuda, xpu: unlisted → float32\n" in text
    assert text.endswith("nothing changed: 4 unchanged")
    many = [replace(RULES[0], op=f"aten::op{number}") for number in range(25)]
    text = printed(replace(same(), rule_changes=many))
    assert "op19 on cuda" in text
    assert "op20 on cuda" not in text
    assert "  and 5 more\n" in text


def test_what_is_no_rule_is_not_counted_among_the_rules_that_changed():
    other = replace(RULES[0], field="documented by pytorch_page")
    only = replace(same(), findings=[], means=[], rule_changes=[*RULES, other], rule_devices=["cpu", "cuda", "xpu"])
    text = " ".join(printed(only).split())
    assert "changed (1) rms_norm on cuda, xpu: unlisted → float32 1 change of" in text
    everything = " ".join(printed(only, show_all=True).split())
    assert "changed (1) rms_norm on cuda, xpu: unlisted → float32 no change of a rule: 1 op" in everything
    assert text.endswith("1 change of autocast's rules on cpu, cuda, xpu")


def test_a_comparison_of_explanations_has_a_section_for_each_case_and_says_how_many_changed():
    explained = {
        FP32.case_id: UNEXPLAINED,
        BF16.case_id: CHANGED,
        "other": Explanation(Traces.NOT_TRACED, ["not traced in the baseline: x"]),
    }
    only = replace(same(), findings=[], means=[], explained=explained, rule_devices=["cpu"])
    text = printed(only)
    assert f"\n\n{BF16.case_id}\n  {WHY[0]}\n  {WHY[1]}\n" in text
    assert "\n\n\n" not in text
    last = " ".join(text.split("\n\n")[-1].split())
    assert last == ("3 cases explained: 1 changed, 1 the same, 1 not traced; no change of autocast's rules on cpu")


def test_markdown_folds_what_explains_and_the_changed_rules():
    explained = {FP32.case_id: Explanation(Traces.CHANGED, [*WHY, "a *module* | with <b>"])}
    text = comparison_markdown(replace(slower(), explained=explained, rule_changes=RULES))
    why = text.partition("<summary>why</summary>")[2].partition("</details>")[0]
    assert f"| linear_chain fp32 | {WHY[0]} |" in why
    assert "a \\*module\\* \\| with \\<b>" in why
    rules = text.partition("<summary>rules of autocast changed (1)</summary>")[2]
    assert "| rms_norm on cuda, xpu: unlisted → float32 |" in rules


def test_json_holds_explanations_and_rules_and_csv_is_as_it_was():
    comparison = replace(slower(), explained={FP32.case_id: CHANGED}, rule_changes=RULES, rule_devices=["cuda", "xpu"])
    document = json.loads(comparison_json(comparison))
    assert document["explained"] == {FP32.case_id: WHY}
    assert document["rule_changes"][0] == {
        "op": "aten::rms_norm", "device": "cuda", "dtypes": ["float16", "bfloat16"], "field": "observed",
        "before": "unlisted", "after": "float32",
    }  # fmt: skip
    assert document["rule_devices"] == ["cuda", "xpu"]
    assert comparison_csv(comparison) == comparison_csv(slower())


def test_a_control_lists_the_cases_that_spread_most_first():
    cases = [make_case(precision) for precision in ("fp32", "bf16_autocast", "bf16_pure")]
    compared = compare(*(make_run(Times(*((case, noisy(1e-3)) for case in cases))) for _ in range(2)))
    spreads = dict(zip((case.case_id for case in cases), (0.03, 0.01, 0.02), strict=True))
    found = SelfComparison(
        cases=3, blocks=16, false_alarms=[], suspected=[], unfit=[], unchanged=[], able=3, highest_rate=0.1,
        spreads=spreads, detectable=[Detectable(blocks=16, seconds=90.0, median=0.021, worst=0.058)],
    )  # fmt: skip
    document = control_document(compared, found)
    assert [row["spread"] for row in document.rows()] == [0.03, 0.02, 0.01]
    (section,) = document.sections()
    detectable, widest = section.blocks[-2:]
    assert detectable.rows[0][0] == "16"
    assert detectable.rows[0][2:] == ["2.1%", "5.8%"]
    assert [row[1] for row in widest.rows] == ["3.0%", "2.0%", "1.0%"]


def test_a_control_that_could_raise_no_alarm_says_so():
    found = SelfComparison(
        cases=2, blocks=1, false_alarms=[], suspected=[], unfit=[], unchanged=[], able=0, highest_rate=math.nan,
        spreads={}, detectable=[],
    )  # fmt: skip
    (section,) = control_document(same(), found).sections()
    assert section.blocks[0].title.startswith("false alarms: 0 of 2 cases: there could be none")


def test_a_defect_that_came_is_told_with_its_remedy_within_the_terminal():
    came = DefectChange(
        check="no-grad-cache", device="cpu", title="a cached cast has no gradient", before="fine", after="defective",
        came=True, remedy="enter autocast again for what is trained, or turn its cache off",
    )  # fmt: skip
    text = printed(replace(same(), defects=[came]), width=60)
    assert "  came: no-grad-cache on cpu: a cached cast has no gradient" in text
    assert "what to do: enter autocast again" in " ".join(text.split())
    told = text[text.index("  came: ") :].partition("\n\n")[0].splitlines()
    assert len(told) > 1
    assert max(map(len, told)) <= 60
