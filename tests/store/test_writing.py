import errno
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ampbench.errors import StoreError
from ampbench.records.run import Arm
from ampbench.store import RunWriter, new_run_id, read_run, require_writable, write_whole
from tests.stored_runs import COMPLETE, RUN, make_case, make_header, make_round

CASE = make_case()
STORED = Path(__file__).parents[1] / "net" / "runs"


@pytest.fixture
def writer(tmp_path):
    with RunWriter.create(tmp_path, make_header(), [CASE]) as writer:
        yield writer


def test_each_entry_is_synced_to_the_disk(writer, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer.append(make_round(CASE))
    writer.append(COMPLETE)
    assert len(synced) == 2


def test_a_run_is_never_written_over_another(tmp_path, writer):
    with pytest.raises(StoreError, match="exists"):
        RunWriter.create(tmp_path, make_header())


def test_a_reopened_run_goes_on_where_it_ended(writer):
    writer.append(make_round(CASE, number=0))
    writer.close()
    again, stored = RunWriter.reopen(writer.path)
    with again:
        assert len(stored.rounds) == 1
        assert not stored.cut
        again.append(make_round(CASE, number=1))
    assert [one.round for one in read_run(writer.path).rounds] == [0, 1]


@pytest.mark.parametrize("lost", [1, 2, 100])
def test_reopening_trims_a_cut_line_and_says_so(writer, lost):
    writer.append(make_round(CASE, number=0), make_round(CASE, number=1))
    writer.close()
    with writer.path.open("r+b") as file:
        file.truncate(writer.path.stat().st_size - lost)
    again, stored = RunWriter.reopen(writer.path)
    with again:
        assert stored.cut
        again.append(make_round(CASE, number=2))
    assert [one.round for one in read_run(writer.path).rounds] == [0, 2]


def test_a_run_that_is_not_there_is_not_reopened_and_nothing_is_closed(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(os, "close", closed.append)
    with pytest.raises(StoreError, match=r"cannot resume .*: No such file or directory"):
        RunWriter.reopen(tmp_path / "none.jsonl")
    assert not closed


def test_two_resumes_of_one_file_cannot_both_write(writer):
    with pytest.raises(StoreError, match=f"{RUN}.jsonl is being written by another ampbench"):
        RunWriter.reopen(writer.path)
    code = "import sys; from ampbench.store import RunWriter; RunWriter.reopen(sys.argv[1])"
    other = subprocess.run([sys.executable, "-c", code, writer.path], capture_output=True, text=True, check=False)
    assert "is being written by another ampbench" in other.stderr
    writer.close()
    RunWriter.reopen(writer.path)[0].close()


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ({}, f"are kept: mend this, then ampbench run --resume {RUN} --results "),
        ({"explains": "keep-fp32"}, f"are kept: .* ampbench explain keep-fp32 --resume {RUN} --results "),
        ({"explains": "scope"}, f"are kept: .* ampbench study scope --resume {RUN} --results "),
        ({"explains": "casts"}, "are kept: mend this, then ampbench explain casts anew$"),
        ({"arm": Arm(session="s", name="baseline")}, "are kept: mend this, then ampbench ab anew$"),
    ],
)
def test_a_full_disk_says_how_to_go_on_with_what_is_gone_on_with(tmp_path, monkeypatch, header, advice, reopened):
    writer = RunWriter.create(tmp_path, make_header(**header), [CASE])
    if reopened:
        writer.close()
        writer, _ = RunWriter.reopen(writer.path)

    def fill_up(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fill_up)
    with writer, pytest.raises(StoreError, match=rf"No space left on device; the stored records {advice}"):
        writer.append(COMPLETE)


def test_an_interrupt_within_a_write_leaves_whole_lines(writer, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append(make_round(CASE))
    writer.append(COMPLETE)
    stored = read_run(writer.path)
    assert stored.rounds == []
    assert stored.ended == "complete"


def test_a_run_that_cannot_be_begun_leaves_no_file(tmp_path, monkeypatch):
    def fail(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(StoreError, match="No space left on device; choose another --results folder"):
        RunWriter.create(tmp_path, make_header())
    assert list((tmp_path / "runs").iterdir()) == []


def test_where_a_run_can_be_written_is_known_before_and_nothing_is_made_there(tmp_path, monkeypatch):
    require_writable(tmp_path / "not" / "there")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("ampbench.store.run_file.os.access", lambda *_: False)
    with pytest.raises(StoreError, match=f"{tmp_path} may not be written to; choose another"):
        require_writable(tmp_path / "not" / "there")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (make_round(CASE, samples=[[float("nan")]]), "Expected `float`, got `null`"),
        (make_round(make_case("fp16_pure")), "a case that is not listed"),
        (make_header(), "a second header"),
    ],
)
def test_nothing_is_written_that_could_not_be_read_again(writer, entry, problem):
    before = writer.path.read_bytes()
    with pytest.raises(StoreError, match=problem):
        writer.append(COMPLETE, entry)
    assert writer.path.read_bytes() == before


def test_an_id_has_time_host_and_random_digits():
    started = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    ids = {new_run_id("my host/é", started) for _ in range(9)}
    assert all(re.fullmatch(r"20260131T120000Z-my-host-000[0-9a-f]{3}", run) for run in ids)
    assert len(ids) > 1
    assert new_run_id("").split("-")[1] == "host"


def test_ids_of_runs_within_one_second_sort_by_time():
    times = [datetime(2026, 1, 31, 12, 0, 0, microsecond, tzinfo=UTC) for microsecond in (0, 900, 40_000, 999_999)]
    ids = [new_run_id("host", started) for started in times]
    assert ids == sorted(ids)
    assert len({*map(len, ids)}) == 1


@pytest.mark.parametrize("kind", ["casts", "scope", "keep-fp32", "scaler", "ceilings", "rules"])
def test_a_run_of_any_kind_is_written_whole_with_all_that_was_found(kind, tmp_path):
    stored = read_run(STORED / f"{kind}.jsonl")
    (written,) = write_whole([stored], tmp_path).values()
    again = read_run(written)
    assert [*again.found] == [*stored.found]
    for line, held in stored.found.items():
        assert {**again.found[line]} == {**held}
    assert (again.failures, again.skips, again.footers) == (stored.failures, stored.skips, stored.footers)
