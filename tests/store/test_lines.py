import types
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.records.case import Case
from ampbench.records.keeping import KeepSearch, SearchSpace, Trial, Wanted
from ampbench.records.measured import Failure, Reading
from ampbench.records.ranges import LowRun, Magnitudes, RangePass
from ampbench.records.run import SCHEMA, Header
from ampbench.store import lines
from ampbench.store.lines import LineError
from tests.stored_runs import make_case, make_divergence, make_header, make_round

PRIMITIVES = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    type(None): st.none(),
}


def values_of(hint: Any, within: lines.Range | None = None) -> st.SearchStrategy[Any]:
    """Every value a record's field may have, by its annotation and the range of its numbers."""
    if within and hint is int:
        return st.integers(*map(int, within))
    if within and hint is float:
        return st.floats(*within, allow_nan=False)
    if hint in PRIMITIVES:
        return PRIMITIVES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*(values_of(argument, within) for argument in arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0], within), max_size=2).map(tuple)
    if origin is list:
        return st.lists(values_of(arguments[0], within), max_size=2)
    if origin in (dict, Mapping):
        return st.dictionaries(*(values_of(argument, within) for argument in arguments), max_size=2)
    hints = get_type_hints(hint)
    return st.builds(hint, **{field.name: value_of(hint, field.name, hints[field.name]) for field in fields(hint)})


def value_of(record: type, name: str, hint: Any) -> st.SearchStrategy[Any]:
    words = lines.WORDS.get((record.__name__, name))
    return st.sampled_from(words) if words else values_of(hint, lines.allowed(record, name))


@given(st.one_of(*map(values_of, lines.KINDS)))
def test_every_record_reads_back_as_it_was_written(record):
    line = lines.encode(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    kind, decoded = lines.decode(line)
    assert kind == lines.KINDS[type(record)]
    assert lines.to_record(kind, decoded) == record


def test_a_line_names_its_kind_and_nothing_else():
    case = make_case()
    assert lines.encode(case).startswith(b'{"case":{"workload":"linear_chain","family":"linear"')
    assert b"null" not in lines.encode(case)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b'{"rounds":{}}',
        b'{"round":null}',
        b'{"round":{}}',
        b'{"footer":{"ended":"complete","finished_at":""},"skip":null}',
        b'{"footer":{"ended":"complete","finished_at":"","finished":""}}',
        b'{"footer":{"ended":1,"finished_at":""}}',
        b'{"footer":{"ended":"complete","finished_at":""}} {}',
        b'{"footer":{"ended":"compl\xff\xfete","finished_at":""}}',
        b'{"footer":{"ended":"complete"}}',
    ],
)
def test_what_is_no_line_is_refused(line):
    with pytest.raises(LineError, match="damaged"):
        lines.decode(line)


def test_a_damaged_key_of_an_optional_field_is_refused():
    line = lines.encode(make_round(make_case(), control=True))
    with pytest.raises(LineError, match="contrpl"):
        lines.decode(line.replace(b'"control"', b'"contrpl"'))


def test_a_field_that_older_files_lack_takes_its_default():
    line = lines.encode(make_round(make_case())).replace(b'"control":false,', b"")
    assert lines.decode(line)[1].control is False


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_byte_never_changes_what_a_line_is_made_of(position, byte):
    record = make_divergence(make_case(), output_rel_l2=0.125, notes=["a note"])
    line = lines.encode(record)
    position %= len(line) - 1
    damaged = line[:position] + bytes([byte]) + line[position + 1 :]
    try:
        kind, decoded = lines.decode(damaged)
    except LineError:
        return
    assert kind == "divergence"
    found = lines.to_record(kind, decoded)
    differing = [field.name for field in fields(record) if getattr(found, field.name) != getattr(record, field.name)]
    assert len(differing) <= 1


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_null_where_it_may_be_and_refused_where_it_may_not(number):
    optional = lines.decode(lines.encode(make_divergence(make_case(), output_rel_l2=number)))[1]
    assert optional.output_rel_l2 is None
    with pytest.raises(LineError, match="items_per_step"):
        lines.decode(lines.encode(make_round(make_case(), items_per_step=number)))


def test_text_that_is_no_unicode_is_escaped_rather_than_lost():
    failure = Failure(case_id="c", stage="round", cause="exception", message="no file /tmp/\udcff", frames=["\udc80"])
    decoded = lines.decode(lines.encode(failure))[1]
    assert decoded.message == r"no file /tmp/\udcff"
    assert decoded.frames == [r"\udc80"]


def test_a_mapping_that_is_no_dict_is_written_as_one():
    case = make_case(parameters=types.MappingProxyType({"width": 4}))
    assert lines.to_record(*lines.decode(lines.encode(case))) == make_case(parameters={"width": 4})


def test_every_kind_of_line_has_a_type():
    assert lines.KINDS[Header] == "header"
    assert lines.KINDS[Case] == "case"
    assert len(lines.KINDS) == 21


def test_a_newer_schema_is_refused_with_both_versions():
    line = lines.encode(make_header()).replace(b'"schema":%d' % SCHEMA, b'"schema":99,"novelty":[]')
    with pytest.raises(LineError, match=rf"newer ampbench \(schema 99; this one reads 1 to {SCHEMA}\)"):
        lines.check_header(line)


def test_a_reading_that_is_not_finite_is_refused():
    reading = Reading(case_id="c", metric="seconds_median", value=float("nan"))
    with pytest.raises(LineError, match="value"):
        lines.decode(lines.encode(reading))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            {"magnitudes": [Magnitudes(module="a", kind="Linear", what="wieght", elements=1)]},
            "of a kind that there is not",
        ),
        ({"low_runs": [LowRun(precision="fp8")]}, "an unknown precision, 'fp8'"),
    ],
)
def test_a_range_pass_of_what_there_is_not_is_refused(damage, said):
    case_id = make_case().case_id
    with pytest.raises(LineError, match=said):
        lines.check_entry("ranges", case_id, RangePass(case_id=case_id, steps=1, **damage), {case_id})
    lines.check_entry("ranges", case_id, RangePass(case_id=case_id, steps=1), {case_id})


def test_a_search_follows_its_space_and_seeks_what_there_is():
    case_id = make_case().case_id
    wanted = Wanted(max_error=1.0, max_gradient_error=1.0)
    space = SearchSpace(case_id=case_id, units=[], wanted=wanted)
    trial = Trial(case_id=case_id)
    ended = KeepSearch(case_id=case_id, max_error=1.0, objective="memory", seed=0, found=None)

    def check(record, spaced):
        lines.check_entry(lines.KINDS[type(record)], case_id, record, {case_id}, (), spaced)

    check(space, ())
    check(SearchSpace(case_id=case_id, units=[]), ())
    check(trial, {case_id})
    check(ended, {case_id})
    for record, spaced, message in (
        (trial, (), "a trial without a search space before it"),
        (ended, {"another"}, "a search without a search space before it"),
        (space, {case_id}, "a second search space"),
        (replace(ended, objective="sped"), {case_id}, "a search for what there is not, 'sped'"),
        (replace(space, wanted=replace(wanted, objective="")), (), "a search for what there is not, ''"),
    ):
        with pytest.raises(LineError, match=message):
            check(record, spaced)
