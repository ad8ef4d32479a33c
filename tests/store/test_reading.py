import gzip
import math
import os
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from ampbench.errors import StoreError
from ampbench.records.measured import Failure
from ampbench.records.run import Imported
from ampbench.store import once, read_header, read_run, run_file
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

FP32, BF16 = make_case("fp32"), make_case("bf16_autocast")
FAILURE = Failure(case_id=BF16.case_id, stage="round", cause="time-out", message="300 s were not enough")
ENTRIES = [
    make_memory(FP32, 100),
    make_divergence(FP32, output_rel_l2=1e-7),
    make_round(FP32, 1e-3, 0),
    FAILURE,
    make_round(FP32, 2e-3, 1),
    COMPLETE,
]
ON_FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path, [FP32, BF16], *ENTRIES)


def test_a_run_reads_back_whole_and_in_order(path):
    stored = read_run(str(path))
    assert stored.path == path
    assert stored.header == make_header() == read_header(path)
    assert list(stored.cases.items()) == [(FP32.case_id, FP32), (BF16.case_id, BF16)]
    assert stored.rounds == [ENTRIES[2], ENTRIES[4]]
    assert stored.memory == {FP32.case_id: ENTRIES[0]}
    assert stored.divergence == {FP32.case_id: ENTRIES[1]}
    assert stored.failures == {BF16.case_id: FAILURE}
    assert stored.skips == {}
    assert stored.footers == [COMPLETE]
    assert (stored.ended, stored.complete, stored.cut) == ("complete", True, False)
    left, imported = replace(stored, footers=[]), make_header(imported=Imported(program="asv", file="a.json"))
    assert (left.ending, left.complete) == ("killed, or still running", False)
    assert replace(left, header=imported).complete


def test_what_is_derived_of_a_run_is_derived_once_and_of_a_copy_with_changes_anew(path):
    asked: list[int] = []

    @once
    def cases(stored):
        asked.append(len(stored.cases))
        return list(stored.cases)

    stored = read_run(path)
    assert cases(stored) is cases(stored)
    assert cases(replace(stored, cases={FP32.case_id: FP32})) == [FP32.case_id]
    assert asked == [2, 1]
    assert stored == read_run(path)  # what is known of one run makes it no other


@pytest.mark.parametrize("cause", ["killed", "crash"])
@pytest.mark.parametrize("after", [make_round(BF16), make_memory(BF16, 1)])
def test_what_is_measured_after_its_worker_was_killed_outdoes_that_failure_and_no_other(tmp_path, cause, after):
    failure = structs.replace(FAILURE, cause=cause)
    stored = read_run(write_run(tmp_path, [FP32, BF16], failure, make_round(FP32), COMPLETE))
    assert stored.failures == {BF16.case_id: failure}
    assert stored.given_up == ({BF16.case_id} if cause == "crash" else set())
    (tmp_path / "again").mkdir()
    again = read_run(write_run(tmp_path / "again", [FP32, BF16], failure, COMPLETE, after))
    assert again.failures == ({BF16.case_id: failure} if cause == "crash" else {})


OTHER = make_case("fp32", batch_size=9)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (make_round(OTHER), "a round of a case that is not listed before it: linear_chain"),
        (make_memory(OTHER, 100), "a memory of a case that is not listed before it: linear_chain"),
        (make_header(), "a second header: two files were put together"),
        (make_round(FP32, number=99, samples=[[1e-3, math.nan]]), r"got `null` - at `\$\.round\.samples\[0\]\[1\]`"),
        (make_round(FP32, number=99, samples=[[1e7]]), "Expected `float` <= 1000000.0"),
        (b"round\n", "it begins as no line does"),
        (b"\n", "it begins as no line does"),
    ],
)
def test_a_line_that_cannot_follow_is_refused_by_its_number(path, odd, said):
    begins = path.read_bytes().splitlines(keepends=True)[:3]
    right = [run_file.encode(make_round(FP32)), run_file.encode(make_memory(BF16, 100))]
    path.write_bytes(b"".join([*begins, right[0], odd if isinstance(odd, bytes) else run_file.encode(odd), right[1]]))
    with pytest.raises(StoreError, match=f"^{path}, line 5: .*{said}"):
        read_run(path)


@ON_FILES
@given(st.data())
def test_any_beginning_of_a_file_is_readable_as_cut_or_refused(path, tmp_path, data):
    whole = path.read_bytes()
    length = data.draw(st.integers(0, len(whole)))
    shorter = tmp_path / "shorter.jsonl"
    shorter.write_bytes(whole[:length])
    if length <= whole.index(b"\n"):
        with pytest.raises(StoreError, match="line 1: no "):
            read_run(shorter)
        return
    stored = read_run(shorter)
    assert stored.cut == (not whole[:length].endswith(b"\n"))
    entries = [*stored.cases, *stored.rounds, *stored.memory, *stored.divergence, *stored.failures, *stored.footers]
    assert len(entries) == whole[:length].count(b"\n") - 1


@ON_FILES
@given(st.data())
def test_any_lost_stretch_within_a_file_is_refused_unless_it_is_whole_lines(path, tmp_path, data):
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 2))
    end = data.draw(st.integers(start + 1, len(whole) - 1))
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(whole[:start] + whole[end:])
    try:
        stored = read_run(damaged)
    except StoreError as error:
        assert str(error).startswith(f"{damaged}, line ")  # noqa: PT017
        return
    original = set(whole.splitlines())
    strange = [line for line in damaged.read_bytes().splitlines() if line not in original]
    # digits or letters lost within a value, or two lines that became one of the same form: JSON alone cannot tell
    assert len(strange) <= 1
    assert all(line.startswith(tuple(known[:9] for known in original)) for line in strange)
    assert all(line.endswith(tuple(known[-3:] for known in original)) for line in strange)
    assert not stored.cut


@pytest.mark.parametrize(
    ("number", "old", "new", "problem"),
    [
        (2, b'{"case"', b'{"cose"', "no line is called cose"),
        (4, b'"peak_bytes":100,', b"", "missing required field `peak_bytes`"),
        (6, b"[[0.001]]", b"[]", "Expected `array` of length >= 1"),
    ],
)
def test_damage_is_refused_by_name_and_line_number(path, number, old, new, problem):
    content = path.read_bytes().splitlines(keepends=True)
    assert old in content[number - 1]
    content[number - 1] = content[number - 1].replace(old, new, 1)
    path.write_bytes(b"".join(content))
    with pytest.raises(StoreError, match=problem) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}, line {number}: ")


def test_a_header_that_lacks_a_field_is_refused(tmp_path):
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(b'{"header":{"schema":8}}\n')
    for read in (read_run, read_header):
        with pytest.raises(StoreError, match="missing required field"):
            read(path)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"2026-01-31T12:00:00Z", b"2026-01-31T1x:00:00Z", "damaged: started_at is no time: '2026-01-31T1x:00:00Z'"),
        (b'"committed_at":null', b'"committed_at":"gpg: Good"', "damaged: committed_at is no time: 'gpg: Good'"),
        (b'"explains":""', b'"explains":"why"', r"damaged, or .* \(upgrade this one\): unknown kind of run: 'why'"),
    ],
)
def test_a_header_with_a_time_or_a_kind_that_is_none_is_refused(path, old, new, problem):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    for read in (read_run, read_header):
        with pytest.raises(StoreError, match=f"line 1: {problem}"):
            read(path)


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "compressed"])
def test_a_run_is_read_from_a_pipe(path, tmp_path, compress):
    pipe, data = tmp_path / "pipe", compress(path.read_bytes())
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(data))
    writer.start()
    stored = read_run(pipe)
    writer.join()
    assert stored == replace(read_run(path), path=pipe)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_line_longer_than_any_of_a_run_is_refused_by_its_number(path, suffix, monkeypatch):
    data = path.read_bytes() + b'{"skip":{"reason":"' + b"x" * 5_000_000
    path = path.with_suffix(suffix)
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    monkeypatch.setattr(run_file, "_LONGEST_LINE", 4 << 20)
    with pytest.raises(StoreError, match=f"^{path}, line 10: damaged: longer than 4 MiB, which no line of a run is"):
        read_run(path)
