"""Lines of a run file: read, refused where damaged or impossible, and read without collecting garbage."""

import gc
import types
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from ampbench.core.metrics import METRICS
from ampbench.errors import StoreError
from ampbench.records.kinds import KINDS, LINES, named
from ampbench.records.measured import Failure, Fitness
from ampbench.records.ranges import LowRun, ModuleError, OriginPass
from ampbench.records.run import CORE
from ampbench.store import RunWriter, read_header, read_run, run_file
from ampbench.store.run_file import LineError, no_garbage_collection
from ampbench.studies.scope import FORWARD, ScopePass, ScopeRun
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

PRIMITIVES = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    type(None): st.none(),
    Any: st.none() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
}

RECORDS = [*CORE.values(), *(named(lines.record) for lines in LINES.values())]
CHECKED = dict.fromkeys(("started_at", "committed_at", "finished_at"), st.datetimes().map(str))
CHECKED["metric"] = st.sampled_from(sorted(METRICS))
"""Values of fields that a record checks itself."""
ASKED = [named(row.study).asked for row in KINDS.values()]
"""What the header may hold beside its own fields."""


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value a record's field may have, by its annotation."""
    if hint in PRIMITIVES:
        return PRIMITIVES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        number, bounds = arguments
        if number is str:
            return st.from_regex(bounds.pattern)
        if get_origin(number) is list:
            return st.lists(values_of(*get_args(number)), min_size=bounds.min_length, max_size=2)
        values = st.integers if number is int else st.floats
        return values(bounds.ge, bounds.le)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple:
        each = [values_of(argument) for argument in arguments if argument is not Ellipsis]
        return st.tuples(*each) if len(each) > 1 else st.lists(*each, max_size=2).map(tuple)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin in (dict, Mapping):
        return st.dictionaries(*map(values_of, arguments), max_size=2)
    hints = get_type_hints(hint, include_extras=True)
    strategies = {name: CHECKED[name] if name in CHECKED else values_of(hints[name]) for name in hint.__struct_fields__}
    return st.fixed_dictionaries(strategies).map(partial(record_of, hint))


def record_of(kind: Any, values: dict[str, Any]) -> Any:
    """A record with these values or, where they contradict each other, with those that it must have."""
    try:
        return kind(**values)
    except ValueError:
        required = {field.name for field in structs.fields(kind) if field.required}
        try:
            return kind(**{name: value for name, value in values.items() if name in required})
        except ValueError:
            return reject()


@given(st.one_of(*map(values_of, RECORDS)))
def test_every_record_reads_back_as_it_was_written(record):
    line = run_file.encode(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    kind, decoded = run_file.decode(line)
    assert kind == run_file.line_of(type(record))
    assert decoded == record


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"rounds":{}}',
        b'{"footer":{"ended":"complete","finished_at":"2026-01-31"},"skip":null}',
        b'{"footer":{"ended":"compl\xff\xfete","finished_at":"2026-01-31"}}',
    ],
)
def test_what_is_no_line_is_refused(line):
    with pytest.raises(LineError, match="damaged"):
        run_file.decode(line)


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_byte_never_changes_what_a_line_is_made_of(position, byte):
    record = make_divergence(make_case(), output_rel_l2=0.125, notes=["a note"])
    line = run_file.encode(record)
    position %= len(line) - 1
    damaged = line[:position] + bytes([byte]) + line[position + 1 :]
    try:
        kind, decoded = run_file.decode(damaged)
    except LineError:
        return
    assert kind == "divergence"
    before, after = structs.asdict(record), structs.asdict(decoded)
    assert sum(after[name] != before[name] for name in before) <= 1


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_null_where_it_may_be_and_refused_where_it_may_not(number):
    optional = run_file.decode(run_file.encode(make_divergence(make_case(), output_rel_l2=number)))[1]
    assert optional.output.rel_l2 is None
    with pytest.raises(LineError, match="items_per_step"):
        run_file.decode(run_file.encode(make_round(make_case(), items_per_step=number)))


CASE = make_case()
MEMORY = make_memory(CASE, 100)


UNBOUNDED = {"seed", "schedule_seed", "version", "parameters", "overrides", "sweeps"}
"""Numbers that users choose, and that nothing is computed from."""


def leaves(hint: Any) -> set[Any]:
    """The types in a field's annotation; a number with bounds is one."""
    arguments = () if get_origin(hint) is Annotated else get_args(hint)
    return {hint} if not arguments else {leaf for argument in arguments for leaf in leaves(argument)}


def test_every_number_that_is_stored_has_bounds() -> None:
    without = {
        f"{record.__name__}.{name}"
        for record in records_within((*RECORDS, *ASKED))
        for name, hint in get_type_hints(record, include_extras=True).items()
        if leaves(hint) & {int, float} and name not in UNBOUNDED
    }
    assert not without, "give these a type of records/__init__.py"


def records_within(records: Iterable[type]) -> set[type]:
    """Return records and all that their fields hold."""
    found: set[type] = set()
    left = [*records]
    while left:
        if (record := left.pop()) not in found:
            found.add(record)
            left += [
                leaf
                for hint in get_type_hints(record).values()
                for leaf in leaves(hint)
                if hasattr(leaf, "__struct_fields__")
            ]
    return found


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (make_round(CASE, 0.0), "`float` >= 1e-09"),
        (make_round(CASE, steps_per_sample=[0]), "`int` >= 1"),
        (make_round(CASE, number=2_000_000_000), "`int` <= 100000"),
        (make_round(CASE, fitness=Fitness(other_share=-0.5)), "`float` >= 0.0"),
        (make_divergence(CASE, output_rel_l2=-1.0), "`float` >= 0.0"),
        (make_divergence(CASE, grad_rel_l2=1e308), "`float` <= 1e+150"),
        (replace(MEMORY, reserved_bytes=-12_900), "`int` >= 0"),
        (replace(MEMORY, source="guess"), "Expected `str` matching"),
        (Failure(case_id=CASE.case_id, stage="round", cause="bad luck", message=""), "Expected `str` matching"),
        (make_case("bf16_pure", phase="lunch"), "Expected `str` matching"),
        (make_case("bf16_pure", path="winding"), "Expected `str` matching"),
        (
            ScopePass(case_id=CASE.case_id, steps=2, scopes=[ScopeRun(scope=FORWARD, samples=[[]])]),
            "Expected `array` of length >= 1",
        ),
        (
            OriginPass(case_id=CASE.case_id, modules=[ModuleError(module="", kind="", elements=1, own_rel_l2=1e308)]),
            "`float` <= 1e+150",
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
    path.write_bytes(before + run_file.encode(record))
    with pytest.raises(StoreError) as refused:
        read_run(path)
    assert str(refused.value).startswith(f"{path}, line 3: damaged: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("record", "changes", "said"),
    [
        (LowRun(precision="fp16_pure"), {"precision": "fp8"}, "an unknown precision, 'fp8'"),
        (make_round(CASE), {"finished_at": ""}, "finished_at is no time: ''"),
        (COMPLETE, {"finished_at": "noon"}, "finished_at is no time: 'noon'"),
        (make_header(), {"committed_at": "gpg: Good"}, "committed_at is no time: 'gpg: Good'"),
        (make_round(CASE), {"cpu_samples": []}, "CPU times that do not match the samples"),
        (make_round(CASE), {"cpu_samples": [[1e-3, 1e-3]]}, "CPU times that do not match the samples"),
    ],
)
def test_a_record_that_contradicts_itself_is_neither_made_nor_read(record: Any, changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        structs.replace(record, **changes)
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(structs.asdict(record) | changes, type(record))


@pytest.mark.parametrize("beginning", [b'{"header":', b'{"header":{"schema":1,"new":[', b"[", b'{"case":{"a":'])
def test_a_line_nested_without_end_is_refused_by_name_like_any_other_damage(beginning: bytes, tmp_path: Any) -> None:
    path, nested = tmp_path / "nested.jsonl", beginning + b"[" * 100_000 + b"\n"
    path.write_bytes(nested)
    for read in (read_header, read_run):
        with pytest.raises(StoreError, match=f"^{path}, line 1: no header"):
            read(path)
    path.write_bytes(run_file.encode(make_header()) + nested)
    with pytest.raises(StoreError, match=f"^{path}, line 2: "):
        read_run(path)


def test_the_collector_is_kept_out_and_let_in_again_also_after_an_error() -> None:
    def fails() -> None:
        with no_garbage_collection():
            assert not gc.isenabled()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert gc.isenabled()
