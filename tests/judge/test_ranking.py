"""A run of many networks ranked: the order, what is told of each, what precisions brought, and what has no result."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ampbench.cli.results import run_rows
from ampbench.core.budget import Budget
from ampbench.core.statement import Answer, state
from ampbench.judge.ranking import (
    Ranked,
    brought,
    in_order,
    kind_of,
    missing_blocks,
    part_blocks,
    ranked,
    sections,
    taken_said,
)
from ampbench.judge.verdict import takes_of, verdicts_of
from ampbench.records.verdict import Status, Verdict
from ampbench.show.rows import Row, Take, grouped, is_wrong
from ampbench.show.wording import code_words
from ampbench.store import StoredRun, read_run
from tests.report.large_runs import write_zoo_run


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return read_run(write_zoo_run(tmp_path_factory.mktemp("zoo"), networks=60, seed=1))


@pytest.fixture(scope="module")
def rows(zoo: StoredRun) -> list[Row]:
    return run_rows(zoo, Budget())


@pytest.fixture(scope="module")
def parts(zoo: StoredRun, rows: list[Row]) -> dict[str, list[Ranked]]:
    return ranked(rows, takes_of(zoo, Budget()), zoo.cases)


def table(parts: dict[str, list[Ranked]], part: str, title: str) -> list[list[str]]:
    (block,) = [one for one in part_blocks(parts[part], kinds=True) if one.title.startswith(title)]
    return [list(row) for row in block.rows]


@pytest.mark.parametrize(
    ("workload", "kind"),
    [
        ("timm:vit_small_patch16_224", "vit"),
        ("torchvision:resnet50", "resnet"),
        ("torchvision:wide_resnet50_2", "wide"),
        ("timm:tf_efficientnet_b0", "tf_efficientnet"),
        ("timm:convnextv2_atto", "convnext"),
        ("torchvision:mobilenet_v3_large", "mobilenet"),
        ("transformers:bert", "bert"),
        ("transformers:t5", "t"),
        ("mlp", "mlp"),
        ("1x1", "1x1"),
    ],
)
def test_a_kind_is_the_beginning_of_a_networks_own_name(workload: str, kind: str) -> None:
    assert kind_of(workload) == kind


def test_every_table_on_which_there_is_advice_is_ranked_once(parts: dict[str, list[Ranked]], rows: list[Row]) -> None:
    measured = {(row["workload"], row["phase"]) for row in rows if row["outcome"] == "ok"}
    found = Counter((one.group.workload, one.group.phase) for tables in parts.values() for one in tables)
    assert found == Counter(measured)
    assert list(parts) == ["inference · cpu · eager", "training · cpu · eager"]


def test_what_gains_most_comes_first_and_what_stays_in_fp32_behind(parts: dict[str, list[Ranked]]) -> None:
    for tables in parts.values():
        gains = [one.gain for one in tables if one.taken is not None and not one.stays]
        assert gains == sorted(gains, reverse=True)
        assert len(gains) > 3
        places = [one.stays for one in tables]
        assert places == sorted(places)
        nearest = [one.nearest["speedup_vs_fp32"] for one in tables if one.stays and one.nearest]
        assert nearest == sorted(nearest, reverse=True)
        assert len(nearest) > 3


def test_what_is_taken_is_what_the_advice_of_the_run_says(parts: dict[str, list[Ranked]], rows: list[Row]) -> None:
    by_id = {row["case_id"]: row for row in rows}
    for one in (one for tables in parts.values() for one in tables):
        assert one.taken is not None
        assert one.taken["precision"] == by_id[one.taken["case_id"]]["precision"] == one.advice.precision
    told = table(parts, "inference · cpu · eager", "which precision")
    best = max((one for one in parts["inference · cpu · eager"] if not one.stays), key=lambda one: one.gain or 0)
    assert best.taken is not None
    assert told[0][:2] == [best.name, best.advice.precision]
    assert told[0][2].startswith(f"{best.taken['speedup_vs_fp32']:.2f}x ")
    assert told[0][2].endswith(f" {best.taken['speedup_low']:.2f}–{best.taken['speedup_high']:.2f}")


def test_what_is_not_safe_is_what_the_verdicts_refuse(
    zoo: StoredRun, parts: dict[str, list[Ranked]], rows: list[Row]
) -> None:
    verdicts = verdicts_of(zoo, Budget())
    wrong = [case_id for case_id, one in verdicts.items() if one.status in (Status.REFUSED, Status.UNDECIDED)]
    assert {row["case_id"] for row in rows if is_wrong(row)} <= set(wrong)
    named = [name for part in parts for one in brought(parts[part]) for names in one.unsafe.values() for name in names]
    assert len(named) == sum(map(is_wrong, rows))
    overflowing = [row for row in rows if row["output_nonfinite"]]
    assert {code_words(row) for row in overflowing} == {"not finite"}


def test_a_network_that_stays_in_fp32_says_what_came_nearest_and_why_not(parts: dict[str, list[Ranked]]) -> None:
    stays = {one.name: one for one in parts["training · cpu · eager"] if one.stays}
    told = table(parts, "training · cpu · eager", "stay in fp32")
    assert [row[0] for row in told] == list(stays)
    for name, precision, speed, _, _, but in told:
        row = stays[name].nearest
        assert row is not None
        assert (precision, speed.split("x")[0]) == (row["precision"], f"{row['speedup_vs_fp32']:.2f}")
        if but == "no gain":
            assert row["speedup_vs_fp32"] < 1.02
        elif but != "not certain":
            assert is_wrong(row)
            assert code_words(row) == but


def test_what_came_nearest_is_no_row_of_what_one_stays_in(zoo: StoredRun, rows: list[Row]) -> None:
    network = next(row["workload"] for row in rows if row["phase"] == "training" and row["outcome"] == "ok")
    own = [row for row in rows if row["workload"] == network and row["phase"] == "training"]
    slower = [row if row["precision"] == "fp32" else row | {"speedup_vs_fp32": 0.5} for row in own]
    fp32 = next(row for row in own if row["precision"] == "fp32")
    slower = [row | {"taken": False} for row in slower]
    default = fp32 | {"precision": "default", "case_id": "default", "speedup_vs_fp32": 1.01, "taken": True}
    group = next(iter(grouped(own)))
    stays = Verdict(
        case_id="default", precision="default", workload=network, phase="training", device="cpu", path="eager",
        status=Status.BASELINE,
    )  # fmt: skip
    advice = Take(group=group, statement=state(Answer.STAY), verdicts=[stays], taken=stays)
    one = Ranked(name=network, group=group, rows=[*slower, default], advice=advice)
    assert one.stays
    assert one.nearest is not None
    assert one.nearest["precision"] not in ("fp32", "default")
    assert next(block.title for block in part_blocks([one])) == "stay in default, the nearest first"


def test_means_over_networks_are_geometric_with_their_t_interval(parts: dict[str, list[Ranked]]) -> None:
    part = "training · cpu · eager"
    (found,) = [one for one in brought(parts[part]) if one.precision == "bf16_autocast"]
    logs = np.log(
        [row["speedup_vs_fp32"] for one in parts[part] for row in one.rows if row["precision"] == "bf16_autocast"]
    )
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    told = found.mean("speedup_vs_fp32")
    assert told is not None
    mean, interval = told
    assert mean == pytest.approx(math.exp(logs.mean()))
    assert interval == pytest.approx((math.exp(low), math.exp(high)))
    assert len(found.tables) == len(found.safe) + sum(map(len, found.unsafe.values()))


def test_kinds_are_of_several_networks_and_have_every_precision(parts: dict[str, list[Ranked]]) -> None:
    tables = parts["inference · cpu · eager"]
    counts = Counter(one.kind for one in tables)
    told = table(parts, "inference · cpu · eager", "by kind of network")
    assert {row[0] for row in told} == {kind for kind, count in counts.items() if count > 1}
    assert Counter(row[0] for row in told).most_common()[-1][1] == 4


def test_every_table_says_that_weights_are_random(parts: dict[str, list[Ranked]]) -> None:
    tables = parts["training · cpu · eager"]
    means = [block.note for block in part_blocks(tables, kinds=True) if "precision brought" in block.title]
    assert means
    assert all(note.startswith("geometric means over networks, with their 95% interval; ") for note in means)
    assert all("random weights" in block.note for block in part_blocks(tables, kinds=True))
    own = [replace(one, group=replace(one.group, parameters="weights=mine.safetensors")) for one in tables[1:]]
    said = [block.note.rpartition("; ")[2] for block in part_blocks([tables[0], *own])]
    assert set(said) == {f"random weights in 1 of {len(tables)}"}
    assert not any("weights" in block.note for block in part_blocks(own))


def test_the_heading_counts_what_is_taken(parts: dict[str, list[Ranked]]) -> None:
    for tables in parts.values():
        counts = Counter(one.advice.precision for one in tables)
        said = taken_said(tables)
        assert f"stay in fp32 for {counts['fp32']}" in said
        assert f"bf16_autocast for {counts['bf16_autocast']}" in said
        assert f" of {len(tables)}" in said.split(",")[0]


def test_failures_that_differ_in_their_numbers_and_names_alone_are_one_reason(rows: list[Row]) -> None:
    failed, skipped = missing_blocks(rows)
    assert (failed.title, skipped.title) == ("failed", "skipped")
    cases = [row for row in rows if row["outcome"] == "failed"]
    assert len({row["reason"] for row in cases}) > 1
    ((reason, count, names),) = failed.rows
    assert reason == cases[0]["reason"]
    assert int(count) == len(cases)
    assert names == ", ".join(dict.fromkeys(row["workload"] for row in cases))


def test_a_case_that_failed_alone_is_named_with_its_phase_and_precision(rows: list[Row]) -> None:
    lone = next(row for row in rows if row["phase"] == "training" and row["precision"] == "bf16_pure")
    changed = [{**row, "outcome": "failed", "reason": "no"} if row is lone else row for row in rows]
    told = [row for block in missing_blocks(changed) for row in block.rows if row[0] == "no"]
    assert told == [("no", "1", f"{lone['workload']} training bf16_pure")]


def test_a_run_in_which_all_was_measured_says_nothing_of_failures(
    parts: dict[str, list[Ranked]], rows: list[Row]
) -> None:
    measured = [row for row in rows if row["outcome"] == "ok"]
    assert len(sections(parts, measured)) == len(parts)
    assert len(sections(parts, rows)) == len(parts) + 1


def test_networks_of_a_kind_each_make_no_table_of_kinds(tmp_path: Path) -> None:
    stored = read_run(write_zoo_run(tmp_path, networks=3))
    rows = run_rows(stored, Budget())
    for tables in ranked(rows, takes_of(stored, Budget()), stored.cases).values():
        assert [block.title for block in part_blocks(tables, kinds=True)][-1] != "by kind of network"


def test_a_table_on_which_nothing_can_be_advised_comes_last(parts: dict[str, list[Ranked]]) -> None:
    tables = next(iter(parts.values()))
    without = replace(tables[0], name="nothing", rows=[row | {"taken": False} for row in tables[0].rows])
    assert [one.name for one in in_order([without, *tables])] == [*(one.name for one in tables), "nothing"]


def test_a_number_that_a_network_has_not_is_an_empty_cell(parts: dict[str, list[Ranked]]) -> None:
    tables = [one for one in next(iter(parts.values())) if one.taken is not None and not one.stays]
    blind = replace(tables[0], rows=[{**one, "memory_ratio_vs_fp32": None} for one in tables[0].rows])
    (first, *_), *_ = [block.rows for block in part_blocks([blind, *tables[1:]])]
    headers = part_blocks([blind])[0].headers
    assert first[headers.index("memory")] == ""
    assert first[headers.index("speed")].startswith(f"{blind.gain:.2f}x")


def test_what_is_not_safe_counts_the_networks_that_it_names(parts: dict[str, list[Ranked]]) -> None:
    for precision, _, count, named in (row for part in parts for row in table(parts, part, "not safe")):
        names, _, more = named.partition(" and ")
        others = int(more.split()[0]) if more.split()[1:] else bool(more)
        assert int(count) == names.count(", ") + 1 + others, precision
