from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest

from ampbench.errors import StoreError
from ampbench.records.measured import Failure, Fitness, Reading
from ampbench.records.ranges import LowRun, ModuleError, OriginPass, RangePass, SeenGradient, Swallowed
from ampbench.records.run import Footer
from ampbench.records.studies import GradientLook, Score
from ampbench.store import RunWriter, lines, read_header, read_run
from tests.stored_runs import COMPLETE, RUN, make_case, make_divergence, make_header, make_memory, make_round, write_run

CASE = make_case()
MEMORY = make_memory(CASE, 100)


def numbers_of(record: type) -> Iterator[tuple[type, str]]:
    """Every field that holds numbers, in a record and in those in it."""
    hints = get_type_hints(record)
    for field in fields(record):
        held = leaves(hints[field.name])
        if held & {int, float}:
            yield record, field.name
        for one in held:
            if is_dataclass(one):
                yield from numbers_of(one)


def leaves(hint: Any) -> set[Any]:
    arguments = get_args(hint)
    return {hint} if not arguments else {leaf for argument in arguments for leaf in leaves(argument)}


def test_every_number_that_is_stored_has_a_range() -> None:
    found = {place for record in lines.KINDS for place in numbers_of(record)}
    named = {name for _, name in found}
    unknown = sorted(f"{record.__name__}.{name}" for record, name in found if lines.allowed(record, name) is None)
    unknown = [place for place in unknown if place.partition(".")[2] not in lines.UNBOUNDED]
    assert not unknown, f"give these a row in store/plausible.py, with the reason: {unknown}"
    assert not set(lines.RANGES) - named, "no record has these any more"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (make_round(CASE, 0.0), "`float` >= 1e-09"),
        (make_round(CASE, -1e-3), "`float` >= 1e-09"),
        (make_round(CASE, 5e-324), "`float` >= 1e-09"),
        (make_round(CASE, 1e308), "`float` <= 1000000.0"),
        (make_round(CASE, steps_per_sample=[0]), "`int` >= 1"),
        (make_round(CASE, items_per_step=-8.0), "`float` >= 0.0"),
        (make_round(CASE, number=2_000_000_000), "`int` <= 100000"),
        (replace(make_round(CASE), seconds=-1.0), "`float` >= 0.0"),
        (make_round(CASE, fitness=Fitness(steal_share=1.5)), "`float` <= 1"),
        (make_round(CASE, fitness=Fitness(other_share=-0.5)), "`float` >= 0.0"),
        (make_round(CASE, finished_at="9999-12-31T23:59:59-14:00"), "finished_at is no time that a clock"),
        (make_round(CASE, finished_at=""), "finished_at is no time: ''"),
        (make_divergence(CASE, output_rel_l2=-1.0), "`float` >= 0.0"),
        (make_divergence(CASE, grad_rel_l2=1e308), "`float` <= 1e+150"),
        (make_divergence(CASE, output_cosine=-1.5), "`float` >= -1"),
        (make_divergence(CASE, output_nonfinite=-1), "`int` >= 0"),
        (
            make_divergence(CASE, argmax_agreeing=9, argmax_decisions=8),
            "argmax_agreeing, 9, are more than argmax_decisions, 8",
        ),
        (make_divergence(CASE, grad_flushed=9, grad_elements=8), "grad_flushed, 9, are more than grad_elements, 8"),
        (Reading(case_id=CASE.case_id, metric="seconds_median", value=-1e-3), "its seconds_median is -0.001"),
        (Reading(case_id=CASE.case_id, metric="argmax_agreement", value=1.25), "its argmax_agreement is 1.25"),
        (replace(MEMORY, peak_bytes=-12_900), "`int` >= 0"),
        (replace(MEMORY, parameter_bytes=101), "parameter_bytes, 101, are more than peak_bytes, 100"),
        (replace(MEMORY, optimizer_bytes=1 << 20), "optimizer_bytes, 1,048,576, are more than peak_bytes, 100"),
        (replace(MEMORY, source="guess"), "Invalid enum value 'guess'"),
        (Failure(case_id=CASE.case_id, stage="round", cause="bad luck", message=""), "Invalid enum value 'bad luck'"),
        (Failure(case_id=CASE.case_id, stage="lunch", cause="crash", message=""), "Invalid enum value 'lunch'"),
        (Footer(ended="fine", finished_at=COMPLETE.finished_at), "Invalid enum value 'fine'"),
        (
            Footer(ended="complete", finished_at="0001-01-01T00:00:00+14:00"),
            "finished_at is no time that a clock shows",
        ),
        (make_case("bf16_pure", phase="lunch"), "Invalid enum value 'lunch'"),
        (make_case("bf16_pure", path="winding"), "Invalid enum value 'winding'"),
        (
            OriginPass(case_id=CASE.case_id, modules=[ModuleError(module="", kind="", elements=1, total_rel_l2=1e308)]),
            "`float` <= 1e+150",
        ),
        (
            RangePass(
                case_id=CASE.case_id,
                steps=1,
                low_runs=[
                    LowRun(
                        precision="fp16_pure",
                        gradients=[SeenGradient(parameter="p", elements=2, flushed=3, nonfinite=0)],
                    )
                ],
            ),
            "flushed, 3, are more than elements, 2",
        ),
    ],
)
def test_what_cannot_be_is_neither_written_nor_read(record: Any, said: str, tmp_path: Any) -> None:
    path = write_run(tmp_path, [CASE])
    before = path.read_bytes()
    writer, _ = RunWriter.reopen(path)
    with writer, pytest.raises(StoreError) as refused:
        writer.append(record)
    assert said in str(refused.value)
    assert path.read_bytes() == before
    path.write_bytes(before + lines.encode(record))
    with pytest.raises(StoreError) as refused:
        read_run(path)
    assert str(refused.value).startswith(f"{path}, line 3: damaged: ")
    assert said in str(refused.value)


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "1969-07-20T20:17:40Z"])
@pytest.mark.parametrize("name", ["started_at", "committed_at"])
def test_a_header_with_a_time_that_no_clock_shows_is_refused(name: str, moment: str, tmp_path: Any) -> None:
    with pytest.raises(StoreError, match=f"{name} is no time that a clock shows"):
        RunWriter.create(tmp_path, make_header(**{name: moment}))
    path = tmp_path / f"{RUN}.jsonl"
    path.write_bytes(lines.encode(make_header(**{name: moment})))
    with pytest.raises(StoreError, match=f"line 1: damaged: {name} is no time that a clock shows"):
        read_header(path)


@pytest.mark.parametrize(
    "record",
    [
        make_round(CASE, 1e-9),
        make_round(CASE, 1e6),
        make_round(CASE, fitness=Fitness(steal_share=1.0 + 2e-16, temperature_celsius=-40.0)),
        make_divergence(CASE, output_rel_l2=0.0, output_cosine=-1.0 - 1e-9, loss=-3.5, reference_loss=-1e200),
        replace(MEMORY, parameter_bytes=100, gradient_bytes=100),
        Swallowed(parameter="p", dtype="fp16", moved=3, swallowed=3, on_grid=True),
        Score(step=0, loss=-1.0, correct=None, decisions=4),
        GradientLook(step=0, scale=1.0, elements=3, nonzero=2, flushed=2, nonfinite=3),
    ],
)
def test_what_is_rare_but_can_be_is_fine(record: Any) -> None:
    assert lines.wrong_parts(record) == ""
    if type(record) in lines.KINDS:
        kind, decoded = lines.decode(lines.encode(record))
        lines.check_entry(kind, CASE.case_id, lines.to_record(kind, decoded), {CASE.case_id})


def test_a_round_that_is_there_already_is_refused_by_its_number(tmp_path: Any) -> None:
    path = write_run(tmp_path, [CASE], make_round(CASE), make_round(CASE, number=1))
    whole = path.read_bytes()
    others = [make_round(CASE, control=True), make_round(CASE, confirmation=True), make_round(CASE, number=2)]
    with RunWriter.reopen(path)[0] as writer:
        for number in (0, 1):
            with pytest.raises(StoreError, match=f"a second round {number} of {CASE.workload}.*appended twice"):
                writer.append(make_round(CASE, 2e-3, number))
        writer.append(*others)
        with pytest.raises(StoreError, match="a second control round 0 of"):
            writer.append(others[0])
    assert len(read_run(path).rounds) == 5
    path.write_bytes(whole + whole.splitlines(keepends=True)[2])
    with pytest.raises(StoreError, match=f"^{path}, line 5: a second round 0 of {CASE.workload}"):
        read_run(path)


def test_rounds_that_were_told_apart_are_told_back() -> None:
    known: dict[str, int] = {}
    for number, changes in ((0, {}), (7, {}), (3, {"control": True}), (4, {"confirmation": True})):
        lines.add_round(make_round(CASE, number=number, **changes), known)
    assert lines.own_rounds(known[CASE.case_id]) == {0, 7}
    assert lines.own_rounds(0) == set()


@pytest.mark.parametrize("beginning", [b'{"header":', b'{"header":{"schema":1,"new":[', b"[", b'{"case":{"a":'])
def test_a_line_nested_without_end_is_refused_by_name_like_any_other_damage(beginning: bytes, tmp_path: Any) -> None:
    path, nested = tmp_path / "nested.jsonl", beginning + b"[" * 100_000 + b"\n"
    path.write_bytes(nested)
    for read in (read_header, read_run):
        with pytest.raises(StoreError, match=f"^{path}, line 1: no header"):
            read(path)
    path.write_bytes(lines.encode(make_header()) + nested)
    with pytest.raises(StoreError, match=f"^{path}, line 2: "):
        read_run(path)
