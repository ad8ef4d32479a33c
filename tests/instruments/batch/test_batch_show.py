"""What a study of batches says and shows: sentences, the table, what each batch took, its part of a page."""

from pathlib import Path

import pytest

from ampbench.instruments.batch.charts import part
from ampbench.instruments.batch.findings import batches_said, limit_of, searches_of
from ampbench.instruments.batch.records import FAILED, TOO_LARGE, BatchAsked, BatchPoint
from ampbench.instruments.batch.show import batches_section, document
from ampbench.present.page import Held, Told
from ampbench.records.measured import Fitness
from ampbench.records.run import Settings
from ampbench.store import StoredRun
from tests.instruments.batch.batch_points import ASKED, BF16, FP32, MIB, search, stored, too_large, tried
from tests.stored_runs import make_case, make_header


def said(run: StoredRun) -> list[str]:
    (found,) = searches_of(run, list(run.cases))
    return batches_said(found)


def test_the_largest_batch_and_the_best_throughput_come_first_each_beside_fp32s(tmp_path: Path) -> None:
    run = stored(tmp_path, *search(FP32, 100, 1000.0), *search(BF16, 150, 3000.0))
    assert said(run) == [
        "the largest batch is bf16_autocast's, 150, 1.50x fp32's",
        (
            "the best throughput is bf16_autocast's, 3.00 k items/s ±2.5% on batches of 150; 95% of it from 75 on: "
            "3.00x fp32's best (95%: 3.00 to 3.00)"
        ),
    ]


def test_precisions_that_take_the_same_batch_are_said_to(tmp_path: Path) -> None:
    assert said(stored(tmp_path, *search(FP32, 100, 1000.0), *search(BF16, 100, 900.0)))[0] == (
        "all precisions take a batch of 100"
    )


def test_without_fp32_nothing_is_compared_with_it(tmp_path: Path) -> None:
    text = " ".join(said(stored(tmp_path, *search(BF16, 100, 1000.0), cases=(BF16,))))
    assert text.startswith("the largest batch is bf16_autocast's, 100 the best throughput is bf16_autocast's")
    assert "fp32" not in text


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([tried(FP32, 4096, 10.0)], "no larger batch than 4,096 was tried (--max-batch)"),
        (
            [tried(FP32, 1, 1.0), BatchPoint(case_id=FP32.case_id, batch=2, outcome=FAILED, reason="ValueError: two")],
            "a batch of 2 failed, which ended the search: ValueError: two",
        ),
        ([too_large(FP32, 1)], "not even a batch of 1 fits into 64.0 MiB: takes 65.0 MiB"),
        ([tried(FP32, 1, 1.0)], "the search broke off: not reached before the run ended"),
        (
            [BatchPoint(case_id=FP32.case_id, batch=1, outcome=FAILED, reason="ValueError: one"), tried(FP32, 2, 1.0)],
            "a batch of 1 does not run: ValueError: one",
        ),
        (
            [tried(FP32, 1, 1.0), too_large(FP32, 2), BatchPoint(case_id=FP32.case_id, batch=1, round=1,
                                                                 outcome=TOO_LARGE, reason="out of memory")],
            "a batch of 1 fits at times only",
        ),
        (
            [tried(FP32, 1, 1.0, fitness=Fitness(other_share=0.5)), too_large(FP32, 2)],
            ("throughput is in doubt: other processes used 50.0% of the CPU while this was timed: do not trust its "
            "times"),
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_said_with_its_reason(points: list[BatchPoint], line: str, tmp_path: Path) -> None:
    assert line in said(stored(tmp_path, *points, cases=(FP32,)))


def test_the_limit_is_what_was_asked_for_else_the_machines() -> None:
    environment, settings = make_header().environment, Settings(memory_limit_bytes=7)
    unlimited = BatchAsked(max_batch=1, rounds=1, seconds=1.0)
    assert limit_of(FP32, ASKED, settings, environment) == 64 * MIB
    assert limit_of(FP32, unlimited, settings, environment) == 7
    assert limit_of(make_case(device="cuda"), unlimited, settings, environment) is None


def test_a_table_has_a_row_for_each_precision_of_a_network_and_phase(tmp_path: Path) -> None:
    other = make_case("fp32", phase="inference")
    points = [*search(FP32, 100, 1000.0), *search(BF16, 150, 3000.0), *search(other, 400, 9000.0)]
    run = stored(tmp_path, *points, cases=(FP32, BF16, other))
    tables = searches_of(run, list(run.cases))
    assert [[row.case.precision for row in one.rows] for one in tables] == [["fp32", "bf16_autocast"], ["fp32"]]
    block = next(block for block in batches_section(tables[0]).blocks if block.headers)
    assert block.rows[1][:4] == ["bf16_autocast", "150 <151", "150 MiB", "1.50x"]
    assert block.rows[1][5:7] == ["3.00 k ±2.5%", "3.00x 3.00–3.00"]
    assert "/b8" not in batches_section(tables[0]).title
    assert len(batches_section(tables[0], everything=True).blocks) == len(batches_section(tables[0]).blocks) + 2


def test_machines_have_a_row_for_each_case_and_every_point(tmp_path: Path) -> None:
    run = stored(tmp_path, *search(FP32, 100, 1000.0), *search(BF16, 150, 3000.0))
    found = document(run, list(run.cases))
    rows = list(found.rows())
    assert list(rows[0]) == list(found.columns)
    assert [(row["precision"], row["largest_batch"], row["too_large_batch"]) for row in rows] == [
        ("fp32", 100, 101),
        ("bf16_autocast", 150, 151),
    ]
    assert rows[1]["speedup_vs_fp32"] == pytest.approx(3.0)
    case = found.data()["cases"][1]
    assert (case["limit_bytes"], len(case["points"])) == (64 * MIB, 5)
    assert case["tables"]["points"][0]["items_per_second"] == pytest.approx(0.97 * 3000)


def test_a_page_tells_of_each_network_once_and_lists_its_precisions(tmp_path: Path) -> None:
    run = stored(tmp_path, *search(FP32, 100, 1000.0), *search(BF16, 150, 3000.0))
    points = run.several_of(BatchPoint)
    told = [
        Told(number=number, name=f"linear_chain {case.precision}", case=case, run=run, found=points[case.case_id])
        for number, case in enumerate(run.cases.values())
    ]
    made = part(Held(told=told))
    assert made is not None
    assert [one.name for one in made.details] == ["linear_chain"]
    assert made.finding == "linear_chain: the largest batch is bf16_autocast's, 150, 1.50x fp32's"
    assert part(Held()) is None
