"""github-action-benchmark's custom tools, against the documented shape: name, unit, value, range?, extra?."""

import re
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from converted_runs import BF16, CASE, HOSTILE, TEXT, mixed_run, named_run, stored_run
from hypothesis import given

from ampbench.base.metrics import METRICS
from ampbench.convert import Selected, formats, select


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry as the action's README documents it, and strictly no more."""

    name: str
    unit: str
    value: float
    range: str | None = None
    extra: str | None = None


def read(text: str) -> dict[str, Entry]:
    entries = msgspec.json.decode(text, type=list[Entry])
    assert len({entry.name for entry in entries}) == len(entries)
    return {entry.name: entry for entry in entries}


def test_what_should_fall_has_values_in_base_units() -> None:
    found = read(formats.smaller_json(mixed_run()))
    time, memory = found[f"{CASE.case_id} seconds_median"], found[f"{BF16.case_id} peak_memory_bytes"]
    assert (time.value, time.unit) == (1.1e-3, "s")
    assert (memory.value, memory.unit) == (4096, "B")
    assert time.extra == "rounds: 3\nrun: 20260131T120000Z-bench-1f9a3c\ntorch: 2.15.0\nhost: bench (AMD EPYC)"


@pytest.mark.parametrize(("write", "better"), [(formats.smaller_json, "lower"), (formats.bigger_json, "higher")])
def test_a_file_holds_one_direction_only(write: Callable[[Selected], str], better: str) -> None:
    metrics = {name.rpartition(" ")[2] for name in read(write(mixed_run()))}
    assert {METRICS[name].better for name in metrics} == {better}


def test_the_range_is_half_the_interval_in_a_form_the_action_reads_as_a_number() -> None:
    selected = mixed_run()
    row = selected.rows[0]
    entry = read(formats.smaller_json(selected))[f"{CASE.case_id} seconds_median"]
    found = re.fullmatch(r"± (\d.+)", entry.range or "")  # src/extractRangeInfo.ts: a sign, then what Number() reads
    assert found
    assert float(found[1]) == pytest.approx((row["seconds_high"] - row["seconds_low"]) / 2, rel=0.01)


def test_without_an_interval_there_is_no_range_and_a_missing_number_has_no_entry() -> None:
    found = read(formats.smaller_json(select(stored_run([(CASE, [1e-3])], peak_bytes=None))))
    assert found[f"{CASE.case_id} seconds_median"].range is None
    assert f"{CASE.case_id} peak_memory_bytes" not in found


def test_cases_that_failed_or_were_skipped_have_no_entry() -> None:
    text = formats.smaller_json(mixed_run()) + formats.bigger_json(mixed_run())
    assert "/fp16_pure/" not in text
    assert "/tf32/" not in text


@given(TEXT)
def test_any_name_comes_back(name: str) -> None:
    assert all(found.startswith(f"{name}[") for found in read(formats.smaller_json(named_run(name))))


def test_a_hostile_name_comes_back() -> None:
    assert all(found.startswith(f"{HOSTILE}[") for found in read(formats.bigger_json(named_run(HOSTILE))))


def test_how_many_rounds_an_imported_run_had_is_not_said() -> None:
    stored = replace(stored_run([(CASE, [])]), readings={"seconds_median": {CASE.case_id: 1e-3}})
    time = read(formats.smaller_json(select(stored)))[f"{CASE.case_id} seconds_median"]
    assert time.extra == "run: 20260131T120000Z-bench-1f9a3c\ntorch: 2.15.0\nhost: bench (AMD EPYC)"


def test_only_the_metrics_that_are_chosen_are_told_by_short_names_of_cases() -> None:
    chosen = select(mixed_run().stored, columns=["seconds_median"], short=True)
    found = read(formats.smaller_json(chosen))
    assert found
    assert all(name.endswith(" seconds_median") and "/" not in name for name in found)
    assert read(formats.bigger_json(chosen)) == {}
