"""Whole sources into the native store: recognised, all or nothing, each run once."""

import os
from collections import Counter
from pathlib import Path

import pytest
from asv_results import write

from ampbench import convert
from ampbench.errors import StoreError
from ampbench.store import StoredRun


def stored_runs(folder: Path, count: int = 2) -> list[StoredRun]:
    for number in range(count):
        write(folder, commit_hash=f"{number}" * 40)
    return list(convert.read_source(folder, Counter()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "damaged"),
        ("[]", "no results of asv"),
        ('{"header":{"schema":3}}', "no results of asv"),
    ],
)
def test_foreign_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(content)
    for source in (tmp_path / "odd.json", tmp_path):
        with pytest.raises(StoreError, match=message):
            list(convert.read_source(source, Counter()))


def test_importing_twice_writes_once(tmp_path: Path) -> None:
    runs = stored_runs(tmp_path / "asv")
    (first,), _ = convert.write_runs(runs[:1], tmp_path / "results")
    before = first.stat()
    (second,), known = convert.write_runs([*runs, *runs], tmp_path / "results")
    assert (second.stem, known) == (runs[1].header.run, 1)
    after = first.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("whole", [0, 2])
def test_a_disk_that_fills_up_leaves_nothing(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = stored_runs(tmp_path / "asv", count=3)
    calls = []
    sync = os.fsync

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > whole:  # each file is synchronised once
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr("ampbench.store.run_file.os.fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*: No space left on device; choose another"):
        convert.write_runs(runs, tmp_path / "results")
    assert list((tmp_path / "results").rglob("*.jsonl")) == []
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["runs"]
