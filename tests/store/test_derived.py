import errno
import math
import os
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import ampbench
from ampbench.base.metrics import METRICS
from ampbench.cli.main import main
from ampbench.errors import StoreError, UsageError
from ampbench.judge.compare import compare_files
from ampbench.judge.frame import measured_columns
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.measured import Failure, Fitness, Reading, Skip, Telemetry
from ampbench.store import Derived, check_results, derived, lines, list_runs
from ampbench.trend import read_runs, tracked
from tests.stored_runs import COMPLETE, make_case, make_ceiling, make_divergence, make_memory, make_round, write_run

FP32, BF16, FP16, LATE = (make_case(name) for name in ("fp32", "bf16_autocast", "fp16_autocast", "bf16_pure"))
READING = next(name for name, one in METRICS.items() if one.unit == "s")
TOLD = Telemetry(clock_hz=1e9, first_clock_hz=1e9, last_clock_hz=9e8, limited={"heat": 0.2}, power_watts=100.0)


@pytest.fixture(autouse=True)
def _of_any_file(monkeypatch):
    """Small files, just written, are kept, too."""
    monkeypatch.setattr(derived, "_LEAST_BYTES", 0)
    monkeypatch.setattr(derived, "_SETTLED", -math.inf)


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path / "results", [FP32, BF16, FP16, LATE], *entries())


def entries(factor=1.0):
    rounds = [
        make_round(case, factor * (1 + place + number / 100) * 1e-3, number, fitness=Fitness(other_share=0.01 * number))
        for place, case in enumerate((FP32, BF16))
        for number in range(3)
    ]
    return [
        make_ceiling("fp32", 1e12),
        *rounds,
        make_round(FP32, 2e-3, 0, control=True),
        make_round(BF16, 3e-3, 3, confirmation=True, telemetry=TOLD, alone="out of memory"),
        make_memory(FP32, 100, flops={"fp32": 10}),
        make_divergence(BF16, output_rel_l2=1e-3),
        Failure(case_id=FP16.case_id, stage="round", cause="time-out", message="300 s were not enough"),
        Skip(case_id=LATE.case_id, reason="unsupported"),
        Reading(case_id=FP32.case_id, metric=READING, value=0.5),
        COMPLETE,
    ]


def kept_files(path):
    folder = path.parent.parent / derived.FOLDER
    return sorted(one for one in folder.iterdir() if one.name.startswith(path.name)) if folder.exists() else []


def no_rounds(monkeypatch):
    """Let nobody decode a line behind a header from here on."""

    def refuse(_):
        raise AssertionError("lines are decoded")

    monkeypatch.setattr(lines, "decode_many", refuse)


ARRAYS = {
    "floats": np.array([1.5, -0.0, math.nan, math.inf]),
    "constant": np.full(4, 2.5),
    "unknown": np.full(4, math.nan),
    "integers": np.array([1, -2, 3, 2**62]),
    "texts": np.array(["a", None, "", "a"], dtype=object),
    "objects": np.array([8, None, 2**40, 8], dtype=object),
    "one": np.array([7.0]),
    "none": np.array([]),
    "no_text": np.array([], dtype=object),
}


def test_arrays_and_records_are_found_as_they_were_kept(path):
    Derived(path).keep("mine", ARRAYS, {"of": {"a": 1.5}})
    found = Derived(path).get("mine", {"of": dict[str, float]})
    assert found.records == {"of": {"a": 1.5}}
    assert found.columns.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.columns[name].dtype == array.dtype
        if array.dtype == object:
            assert found.columns[name].tolist() == array.tolist()
        else:
            assert found.columns[name].tobytes() == array.tobytes()
            found.columns[name][:] = 0  # and may be written to


def test_a_run_that_was_read_is_read_again_without_its_rounds(path, monkeypatch):
    frame, measured = ampbench.load(path), MeasuredRun.read(path)
    columns = measured_columns(measured)
    no_rounds(monkeypatch)
    pd.testing.assert_frame_equal(ampbench.load(path), frame)
    again = MeasuredRun.read(path)
    assert again.stored == measured.stored
    for name in measured.rounds.__slots__:
        np.testing.assert_array_equal(getattr(again.rounds, name), getattr(measured.rounds, name))
    assert (again.differing, again.alone, again.summaries) == (measured.differing, measured.alone, measured.summaries)
    assert [again.items(id) for id in again.stored.cases] == [measured.items(id) for id in measured.stored.cases]
    assert [again.weights(id) for id in again.stored.cases] == [measured.weights(id) for id in measured.stored.cases]
    for name, column in measured_columns(again).items():
        assert repr(column.tolist()) == repr(columns[name].tolist())


def test_a_folder_is_loaded_from_what_is_kept_of_each_run(path, monkeypatch):
    write_run(path.parent.parent, [FP32], make_round(FP32), COMPLETE, run="20260131T120001Z-bench-1f9a3d")
    frame = ampbench.load(path.parent.parent)
    assert len(frame) == 5
    no_rounds(monkeypatch)
    pd.testing.assert_frame_equal(ampbench.load(path.parent.parent), frame)


def test_comparisons_and_trends_are_the_same_from_what_is_kept(path, tmp_path, monkeypatch):
    other = write_run(
        tmp_path / "results", [FP32, BF16], *entries(1.5)[1:10], COMPLETE, run="20260201T120000Z-b-1f9a3d"
    )
    compared, followed = compare_files(path, other), followed_in(tmp_path / "results")
    no_rounds(monkeypatch)
    assert compare_files(path, other) == compared
    assert followed_in(tmp_path / "results") == followed


def followed_in(results, keyword=""):
    """Return what a trend of the usual metrics is made of."""
    found = []
    for run in read_runs([], results, tracked([]), keyword).runs:
        fields_of = {one.name: getattr(run, one.name) for one in fields(run) if one.name != "read"}
        fields_of["values"] = {name: values.tolist() for name, values in run.values.items()}
        found.append(repr({name: getattr(one, "tolist", lambda one=one: one)() for name, one in fields_of.items()}))
    return found


@pytest.mark.parametrize("keyword", ["", "bf16"])
def test_a_trend_reads_neither_rounds_nor_columns_of_runs_that_it_has_seen(path, monkeypatch, keyword):
    results = path.parent.parent
    monkeypatch.setattr(Derived, "get", lambda *_: None)
    followed = followed_in(results, keyword)
    assert len(read_runs([], results, tracked([]), keyword).runs[0].cases) == (2 if keyword else 4)
    monkeypatch.undo()
    monkeypatch.setattr(derived, "_LEAST_BYTES", 0)
    for one in kept_files(path):
        if not one.name.endswith(".trend"):
            one.unlink()
    monkeypatch.setattr(MeasuredRun, "read", None)
    assert followed_in(results, keyword) == followed


def test_means_are_read_where_they_were_not_and_told_to_nobody_who_did_not_ask(path, monkeypatch):
    assert not MeasuredRun.read(path, averaging=False).has_means
    assert MeasuredRun.read(path).has_means
    no_rounds(monkeypatch)
    assert MeasuredRun.read(path).has_means
    assert not MeasuredRun.read(path, averaging=False).has_means


def edited(path):
    """Change a digit of a sample, and nothing of the file's size and time."""
    before = path.stat()
    data = path.read_bytes()
    place = data.index(b'"samples":[[') + len(b'"samples":[[0.00')
    path.write_bytes(data[:place] + (b"5" if data[place : place + 1] != b"5" else b"6") + data[place + 1 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def appended(path):
    with path.open("ab") as file:
        file.write(lines.encode(make_round(FP32, 9e-3, 7)))


def replaced(path):
    edited(path)
    path.rename(path.with_name("other"))
    path.with_name("other").rename(path)


@pytest.mark.parametrize("change", [edited, appended, replaced])
def test_what_was_kept_of_a_file_that_changed_is_made_anew(path, change):
    before = ampbench.load(path)
    change(path)
    after = ampbench.load(path)
    assert after.seconds_median.dropna().tolist() != before.seconds_median.dropna().tolist()
    pd.testing.assert_frame_equal(ampbench.load(path), after)


def test_a_blocks_digest_tells_a_change_where_the_file_system_tells_no_times(path, monkeypatch):
    Derived(path).keep("mine", {"a": np.zeros(1)})
    found = path.stat()
    edited(path)
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **given: found if self == path else stat(self, **given))
    assert Derived(path).get("mine") is None


def test_all_code_that_derives_is_part_of_what_makes_a_kept_file_the_same():
    code = "import sys, ampbench.judge.rounds, ampbench.trend.reducing\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.rpartition(".")[0] for name in loaded if name.startswith("ampbench.")} - {"ampbench"}
    told = {f"ampbench.{folder.replace('/', '.')}" for folder in derived._CODE}
    assert packages - {"ampbench.instruments"} == told


@pytest.mark.parametrize("name", ["SCHEMA", "_FORMAT", "_code"])
def test_what_another_version_kept_is_not_believed(path, monkeypatch, name):
    Derived(path).keep("mine", {"a": np.zeros(1)})
    assert Derived(path).get("mine")
    monkeypatch.setattr(derived, name, (lambda: "0.0.9") if name == "_code" else 99)
    assert Derived(path).get("mine") is None


def test_no_damaged_file_is_believed_whichever_byte_it_is(path):
    Derived(path).keep("mine", ARRAYS, {"of": [1]})
    [file] = kept_files(path)
    data = file.read_bytes()
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert Derived(path).get("mine", {"of": list[int]}) is None
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:cut])
        assert Derived(path).get("mine", {"of": list[int]}) is None
    file.write_bytes(data + b"\0")
    assert Derived(path).get("mine", {"of": list[int]}) is None
    file.write_bytes(data)
    assert Derived(path).get("mine", {"of": list[int]})
    assert Derived(path).get("mine", {"of": list[str]}) is None
    assert Derived(path).get("mine", {"another": list[int]}) is None


def test_a_damaged_one_is_made_anew(path):
    frame = ampbench.load(path)
    [file] = kept_files(path)
    whole = file.read_bytes()
    file.write_bytes(b"\xff" * len(whole))
    pd.testing.assert_frame_equal(ampbench.load(path), frame)
    assert file.read_bytes() == whole


def test_nothing_is_kept_of_a_file_that_changed_while_it_was_read(path):
    beside = Derived(path)
    appended(path)
    beside.keep("mine", {"a": np.zeros(1)})
    assert kept_files(path) == []


def test_nothing_is_kept_of_small_files_of_new_ones_of_others_folders_and_of_what_is_no_file(
    path, tmp_path, monkeypatch
):
    def kept(file):
        Derived(file).keep("mine", {"a": np.zeros(1)})
        return kept_files(file)

    elsewhere = tmp_path / path.name
    elsewhere.write_bytes(path.read_bytes())
    os.mkfifo(path.with_name("pipe.jsonl"))
    for file in (elsewhere, path.with_name("pipe.jsonl"), path.with_name("none.jsonl"), path.parent):
        assert kept(file) == []
    with monkeypatch.context() as patch:
        patch.setattr(derived, "_SETTLED", 3600)
        assert kept(path) == []
    with monkeypatch.context() as patch:
        patch.setattr(derived, "_LEAST_BYTES", path.stat().st_size + 1)
        assert kept(path) == []
    assert kept(path)


def test_nothing_is_kept_of_a_run_that_is_cut_or_only_explains_or_damaged(tmp_path, path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for _ in range(2):
        with pytest.warns(UserWarning, match="cut"):
            ampbench.load(path)
    path.write_bytes(whole + b"{}\n")
    with pytest.raises(StoreError):
        ampbench.load(path)
    path.write_bytes(whole)
    path.write_bytes(whole.replace(b'"explains":""', b'"explains":"casts"'))
    with pytest.raises(UsageError):
        ampbench.load(path)
    MeasuredRun.read(path)
    assert kept_files(path) == []


@pytest.mark.parametrize("call", ["mkdir", "open", "replace"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_or_one_that_cannot_be_written_is_no_reason_to_fail(path, monkeypatch, call, error):
    original = getattr(Path, call)

    def refuse(self, *given, **named):
        if derived.FOLDER in self.parts and given[:1] != ("rb",):
            raise OSError(error, os.strerror(error))
        return original(self, *given, **named)

    monkeypatch.setattr(Path, call, refuse)
    frame = ampbench.load(path)
    monkeypatch.undo()
    pd.testing.assert_frame_equal(ampbench.load(path), frame)
    assert kept_files(path) == []


def test_many_who_read_at_once_agree_and_leave_one_file(path):
    frames, problems = [], []

    def read():
        try:
            frames.extend(ampbench.load(path) for _ in range(5))
        except Exception as error:  # noqa: BLE001 - told below
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not problems
    assert len(frames) == 40
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0])
    assert len(kept_files(path)) == 1


def test_what_was_kept_of_runs_that_are_gone_is_deleted_with_the_next_that_is_kept(path):
    gone = path.with_name("20260101T000000Z-gone-1f9a3c.jsonl")
    zipped = path.with_name(f"{path.name}.gz")
    for file in (gone, zipped):
        file.write_bytes(path.read_bytes())
        Derived(file).keep("mine", {"a": np.zeros(1)})
    gone.unlink()
    Derived(path).keep("mine", {"a": np.zeros(1)})
    assert kept_files(gone) == []
    assert {one.name for one in kept_files(path)} == {f"{path.name}.mine", f"{zipped.name}.mine"}
    zipped.unlink()
    Derived(path).keep("another", {"a": np.zeros(1)})
    assert {one.name for one in kept_files(path)} == {f"{path.name}.mine", f"{path.name}.another"}


def test_nobody_who_looks_for_runs_finds_what_is_kept(path, capsys):
    results = path.parent.parent
    ampbench.load(path)
    MeasuredRun.read(path)
    assert len(kept_files(path)) == 2
    assert list_runs(results) == [path]
    assert [file for file, _ in check_results(results)] == [path]
    assert main(["list", "runs", "--results", str(results), "--json"]) == 0
    assert len(msgspec.json.decode(capsys.readouterr().out)) == 1
    assert (results / derived.FOLDER / ".gitignore").read_text() == "*\n"
    assert (
        (results / derived.FOLDER / "CACHEDIR.TAG")
        .read_text()
        .startswith("Signature: 8a477f597d28d172789f06886806bc55")
    )
