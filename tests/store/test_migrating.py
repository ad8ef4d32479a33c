"""Older run files become current ones that say the same, or stay as they are."""

import errno
import fcntl
import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampbench.errors import StoreError
from ampbench.judge.frame import load
from ampbench.records.casts import CastPass, CastTrace, Operation
from ampbench.records.run import SCHEMA, Imported
from ampbench.store import (
    CURRENT,
    LEFT_ALONE,
    MIGRATED,
    RunWriter,
    check_results,
    migrate_file,
    migrate_results,
    migrating,
    read_header,
    read_run,
)
from tests.stored_runs import COMPLETE, RUN, make_case, make_memory, make_round, write_run

FP32, BF16 = make_case("fp32"), make_case("bf16_autocast")
TRACE = CastPass(case_id=FP32.case_id, how="device", trace=CastTrace(ops=[Operation(index=0, name="aten.mul")]))
ADDED = {
    2: ["arm"],
    3: ["committed_at", "imported"],
    4: ["explains"],
    5: [],
    6: ["asked"],
    7: ["follows", "precisions"],
}
"""The header's fields that each schema added."""
ON_FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def older(path: Path, schema: int, *, packed: bool = False) -> Path:
    """Make a file one of an earlier schema: fields added since are missing, in the header and of the first round."""
    written = path.read_text().splitlines()
    header = json.loads(written[0])
    header["header"]["schema"] = schema
    for name in (field for later, fields in ADDED.items() if later > schema for field in fields):
        del header["header"][name]
    written[0] = json.dumps(header, separators=(",", ":"))
    if schema < 6:
        written = [line.replace(',"flops":null', "") for line in written]
    if schema < 2:
        written = [line.replace(',"confirmation":false', "") for line in written]
    data = "".join(f"{line}\n" for line in written).encode()
    if not packed:
        path.write_bytes(data)
        return path
    path.unlink()
    packed_path = path.with_name(f"{path.name}.gz")
    packed_path.write_bytes(gzip.compress(data))
    return packed_path


@pytest.fixture
def current(tmp_path):
    rounds = [make_round(FP32), make_round(FP32, 2e-3, 1), make_round(BF16)]
    return write_run(tmp_path, [FP32, BF16], make_memory(FP32, 100), TRACE, *rounds, COMPLETE)


@pytest.fixture
def old(current):
    path = older(current, 5)
    os.utime(path, ns=(1_600_000_000_000_000_123, 1_700_000_000_123_456_789))
    return path


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def only_file_of(path: Path) -> bool:
    """Whether nothing else was left in its folder."""
    return list(path.parent.iterdir()) == [path]


def left_alone(path: Path) -> str:
    """Migrate a file, which must leave every bit of it, and return why."""
    before, about = path.read_bytes(), path.stat()
    found = migrate_file(path)
    assert found.outcome == LEFT_ALONE
    assert path.read_bytes() == before
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (about.st_ino, about.st_mtime_ns)
    assert only_file_of(path)
    assert found.problem is not None
    return found.problem


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_a_file_of_each_earlier_schema_becomes_a_current_one_that_says_the_same(current, schema, packed):
    path = older(current, schema, packed=packed)
    before, text, frame = read_run(path), content(path), load(path)
    found = migrate_file(path)
    assert (found.path, found.schema, found.outcome, found.problem) == (path, schema, MIGRATED, None)
    assert read_run(path) == replace(before, header=replace(before.header, schema=SCHEMA))
    assert load(path).equals(frame)
    assert content(path).split(b"\n")[1:] == text.split(b"\n")[1:]
    assert json.loads(content(path).split(b"\n")[0])["header"].keys() >= {
        field for fields in ADDED.values() for field in fields
    }
    assert path.read_bytes().startswith(b"\x1f\x8b") == packed
    assert only_file_of(path)


def test_there_is_a_test_of_each_schema():
    assert max(ADDED) == SCHEMA


def test_a_second_time_there_is_nothing_to_do(old):
    assert migrate_file(old).outcome == MIGRATED
    about = old.stat()
    assert migrate_file(old).outcome == CURRENT
    assert (old.stat().st_ino, old.stat().st_mtime_ns) == (about.st_ino, about.st_mtime_ns)


def test_a_current_file_is_read_whole_and_not_touched(current):
    about = current.stat()
    assert migrate_file(current).outcome == CURRENT
    assert (current.stat().st_ino, current.stat().st_mtime_ns) == (about.st_ino, about.st_mtime_ns)
    current.write_bytes(current.read_bytes() + b"{}\n")
    assert "line 10: damaged" in left_alone(current)


def test_a_current_run_that_is_being_written_is_current(tmp_path):
    with RunWriter.create(tmp_path, read_header(write_run(tmp_path / "other", [])), [FP32]) as writer:
        assert migrate_file(writer.path).outcome == CURRENT
        writer.append(make_round(FP32))


def test_times_and_mode_stay(old):
    old.chmod(0o640)
    about = old.stat()
    assert migrate_file(old).outcome == MIGRATED
    now = old.stat()
    assert (now.st_mtime_ns, now.st_mode, now.st_uid, now.st_gid) == (
        about.st_mtime_ns,
        about.st_mode,
        about.st_uid,
        about.st_gid,
    )
    assert now.st_ino != about.st_ino


def test_a_link_stays_a_link_to_the_file_that_is_rewritten(old, tmp_path):
    link = tmp_path / "link.jsonl"
    link.symlink_to(old)
    assert migrate_file(link).outcome == MIGRATED
    assert link.is_symlink()
    assert read_header(old).schema == SCHEMA


def test_a_header_in_another_order_and_spacing_is_read_and_written_as_ours(old):
    header, rest = old.read_text().split("\n", 1)
    fields = json.loads(header)["header"] | {"label": 'a "schema":5 of é'}
    old.write_text('{"header": ' + json.dumps(dict(reversed(fields.items()))) + "}\n" + rest)
    assert migrate_file(old).outcome == MIGRATED
    assert read_header(old) == replace(read_header(old), schema=SCHEMA, label='a "schema":5 of é')
    assert old.read_text().split("\n", 1)[1] == rest


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data.replace(b'"samples"', b'"sampels"', 1), r"line 6: damaged, or .* newer ampbench.*sampels"),
        (lambda data: data.replace(b'"index":0', b'"index":""'), "line 5: damaged: Expected `int`"),
        (lambda data: data.replace(b"width=512", b"width=513"), "line 4: .*not listed"),
        (lambda data: data.replace(b'"started_at":"2026', b'"started_at":"never'), "line 1: .*started_at is no time"),
        (lambda data: data.replace(b'"schema":5', b'"schema":0'), "line 1: unknown schema 0"),
        (lambda data: data.replace(b'"schema":5', b'"schema":99'), r"newer ampbench \(schema 99.*; upgrade ampbench"),
        (lambda data: b'{"results":[]}\n' + data, "line 1: no header of an ampbench run"),
        (lambda data: b'{"autocast_rules":{"schema":1}}\n', "`ampbench explain rules` probes anew"),
        (lambda data: data.partition(b"\n")[2], "begins with a case, so its beginning is lost"),
        (lambda data: b"", "the file is empty"),
        (lambda data: data[:-1], "last line is cut: .* ampbench run --resume .*, which rewrites it"),
        (lambda data: data[: data.rfind(b'{"footer"')], "no footer ends it, .*ampbench run --resume"),
        (
            lambda data: data + data.splitlines(keepends=True)[5].replace(b'"round":0', b'"round":9'),
            "no footer ends it",
        ),
        (lambda data: gzip.compress(data)[:-9], "damaged: Compressed file ended"),
        (lambda data: gzip.compress(data[:-1]), "last line is cut"),
    ],
)
def test_what_is_damaged_cut_foreign_newer_or_unfinished_is_left_alone_and_named(old, damage, problem):
    data = damage(old.read_bytes())
    assert data != old.read_bytes()
    old.write_bytes(data)
    said = left_alone(old)
    assert str(old) in said
    assert "\n" not in said
    assert re.search(problem, said)


@ON_FILES
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_left_alone(old, share):
    whole = old.read_bytes()
    old.write_bytes(whole[: int(share * len(whole))])
    left_alone(old)
    old.write_bytes(whole)


@pytest.mark.parametrize(
    ("explains", "advice"),
    [("scope", "continue it with ampbench study scope --resume"), ("casts", "can only be measured anew")],
)
def test_an_unfinished_run_is_continued_by_its_own_verb_or_not_at_all(tmp_path, explains, advice):
    assert advice in left_alone(older(write_run(tmp_path, [FP32], explains=explains), 5))


def test_an_imported_run_needs_no_footer(tmp_path):
    imported = Imported(program="asv", file="abc.json")
    path = write_run(tmp_path, [FP32], schema=3, imported=imported)
    assert migrate_file(path).outcome == MIGRATED
    assert read_header(path).imported == imported


def test_a_run_that_is_being_written_is_left_alone(old):
    with old.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "is being written by another ampbench: wait for it, then migrate again" in left_alone(old)
    assert migrate_file(old).outcome == MIGRATED


def test_no_run_is_continued_while_it_is_rewritten(old, monkeypatch):
    write, refused = migrating._write, []

    def watched(*arguments):
        with pytest.raises(StoreError) as caught:
            RunWriter.reopen(old)
        refused.append(str(caught.value))
        return write(*arguments)

    monkeypatch.setattr(migrating, "_write", watched)
    assert migrate_file(old).outcome == MIGRATED
    assert "is being written by another ampbench" in refused[0]


@pytest.mark.parametrize("gone", [False, True])
def test_who_opened_the_old_file_does_not_write_into_it_once_it_was_replaced(old, monkeypatch, gone):
    def flock_late(descriptor, operation):
        monkeypatch.undo()
        assert migrate_file(old).outcome == MIGRATED
        if gone:
            old.unlink()
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", flock_late)
    with pytest.raises(StoreError, match="was replaced while it was opened: try again"):
        RunWriter.reopen(old)


def test_a_file_system_without_locks_is_migrated_on(old, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    assert migrate_file(old).outcome == MIGRATED


STEPS = ["tempfile.mkstemp", "os.fdopen", "shutil.copystat", "os.fsync", "Path.replace"]


def fail_at(step: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(f"ampbench.store.migrating.{step}", fail)


@pytest.mark.parametrize("step", STEPS[2:])
def test_an_interruption_at_any_step_leaves_the_old_file(old, step, monkeypatch):
    before = old.read_bytes()
    with monkeypatch.context() as patch:
        fail_at(step, KeyboardInterrupt(), patch)
        with pytest.raises(KeyboardInterrupt):
            migrate_file(old)
    assert old.read_bytes() == before
    assert only_file_of(old)
    assert migrate_file(old).outcome == MIGRATED


@pytest.mark.parametrize("step", [*STEPS[:1], *STEPS[2:]])
def test_a_full_disk_at_any_step_leaves_the_old_file_and_says_so(old, step, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(step, OSError(errno.ENOSPC, "No space left on device"), patch)
        said = left_alone(old)
    assert said == f"cannot rewrite {old}: No space left on device; it is as it was: mend this, then try again"
    assert migrate_file(old).outcome == MIGRATED


def test_what_a_killed_migration_left_behind_is_removed_and_nothing_else(old):
    behind, other = (old.with_name(f".{name}.abc123.migrating") for name in (old.name, f"x{old.name}"))
    behind.write_text("half")
    other.write_text("another's")
    assert [path for path, _ in check_results(old.parent.parent)] == [old]
    assert migrate_file(old).outcome == MIGRATED
    assert sorted(old.parent.iterdir()) == sorted([old, other])


def test_a_disk_that_takes_no_more_bytes_leaves_the_old_file(old):
    before = old.read_bytes()
    code = (
        "import resource, signal, sys; from pathlib import Path; from ampbench.store import migrate_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2}, {len(before) // 2}))\n"
        "print(migrate_file(Path(sys.argv[1])).problem)"
    )
    # -B: bytecode of what it imports would be cut at the same length, and be there for all who import that later
    ended = subprocess.run([sys.executable, "-B", "-c", code, old], capture_output=True, text=True, check=True)
    assert "File too large; it is as it was" in ended.stdout
    assert old.read_bytes() == before
    assert only_file_of(old)


def test_a_file_that_may_not_be_written_is_left_alone(old, monkeypatch):
    opened = os.open

    def refuse(path, flags, *rest):
        if path == old and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    assert "Permission denied; make it writable" in left_alone(old)


def test_the_new_file_is_on_the_disk_before_it_takes_the_place_and_the_name_after(old, monkeypatch):
    done = []
    fsync, replaced, synced = os.fsync, Path.replace, migrating.sync_folder

    def noted(name, function):
        return lambda *arguments: (done.append(name), function(*arguments))[1]

    monkeypatch.setattr(os, "fsync", noted("fsync", fsync))
    monkeypatch.setattr(Path, "replace", noted("replace", replaced))
    monkeypatch.setattr(migrating, "sync_folder", noted("folder", synced))
    assert migrate_file(old).outcome == MIGRATED
    assert done[:3] == ["fsync", "replace", "folder"]


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (b'"label":""', b'"label":"x"'),
        (b'"seconds":1.0', b'"seconds":1.5'),
        (b'"schema":%d' % SCHEMA, b'"schema":5'),
        (b'"peak_bytes":100', b'"peak_bytes":""'),
        (COMPLETE.ended.encode(), b"interrupted"),
    ],
)
def test_what_does_not_read_back_the_same_takes_no_place(old, said, instead, monkeypatch):
    write = migrating._write

    def lies(source, header, file):
        last = write(source, header, file)
        file.flush()
        path = next(path for path in old.parent.iterdir() if path != old)
        data = path.read_bytes()
        assert said in data
        path.write_bytes(data.replace(said, instead))
        return last

    monkeypatch.setattr(migrating, "_write", lies)
    assert "did not read back the same; it is as it was" in left_alone(old)


@pytest.mark.parametrize("change", [lambda data: data + data.splitlines(keepends=True)[-1], lambda data: data[:-70]])
def test_lines_that_are_lost_or_added_meanwhile_are_seen(old, change, monkeypatch):
    copied, before = migrating._copy_what_it_is, old.read_bytes()

    def meanwhile(source, target):
        copied(source, target)
        source.write_bytes(change(before))

    monkeypatch.setattr(migrating, "_copy_what_it_is", meanwhile)
    found = migrate_file(old)
    assert "did not read back the same" in (found.problem or "")
    assert old.read_bytes() == change(before)


def test_all_files_of_a_folder_are_migrated_and_the_others_named(tmp_path):
    for number, schema in enumerate((1, 3, SCHEMA)):
        older(write_run(tmp_path, [FP32], COMPLETE, run=f"{RUN}{number}"), schema)
    older(write_run(tmp_path, [FP32], COMPLETE, run=f"{RUN}3"), 4, packed=True)
    older(write_run(tmp_path, [FP32], COMPLETE, run=f"{RUN}3"), 2)
    (tmp_path / "runs" / "zzz.jsonl").write_text("nonsense\n")
    found = migrate_results(tmp_path)
    assert [(one.schema, one.outcome) for one in found] == [
        (1, MIGRATED),
        (3, MIGRATED),
        (SCHEMA, CURRENT),
        (4, MIGRATED),
        (2, MIGRATED),
        (None, LEFT_ALONE),
    ]
    assert [one.path for one in found] == [path for path, _ in check_results(tmp_path)]


def test_a_folder_of_run_files_is_checked_and_migrated_too(tmp_path):
    older(write_run(tmp_path, [FP32], COMPLETE), 4, packed=True)
    runs = tmp_path / "runs"
    assert [path.parent for path, _ in check_results(runs)] == [runs]
    assert [one.outcome for one in migrate_results(runs)] == [MIGRATED]


def test_probes_kept_beside_the_runs_are_checked_and_migrated_with_them(tmp_path):
    run = write_run(tmp_path, [FP32], COMPLETE)
    probes = older(write_run(tmp_path / "other", [FP32], COMPLETE), 4, packed=True)
    kept = tmp_path / "rules" / "torch-2.13.0.jsonl.gz"
    kept.parent.mkdir()
    probes.rename(kept)
    assert [path for path, _ in check_results(tmp_path)] == [kept, run]
    assert [(one.path, one.outcome) for one in migrate_results(tmp_path)] == [(kept, MIGRATED), (run, CURRENT)]


def test_a_run_that_is_continued_is_first_rewritten_in_the_current_schema(old):
    whole = old.read_bytes()
    old.write_bytes(whole[:-1])
    writer, stored = RunWriter.reopen(old)
    with writer:
        assert stored.cut
        assert (stored.header.schema, read_header(old).schema) == (SCHEMA, SCHEMA)
        writer.append(COMPLETE)
    assert read_run(old).ended == "complete"
    assert old.read_bytes().partition(b"\n")[2] == whole.partition(b"\n")[2]


def test_a_damaged_older_run_is_not_rewritten_for_who_continues_it(old):
    damaged = old.read_bytes().replace(b'"round":', b'"raund":')
    old.write_bytes(damaged)
    with pytest.raises(StoreError, match="damaged"):
        RunWriter.reopen(old)
    assert old.read_bytes() == damaged
