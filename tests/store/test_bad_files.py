"""What is wrong with files and folders of runs, through the real command line: one clear line, nothing half-written."""

import errno
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.errors import StoreError
from ampbench.store import RunWriter, read_run
from tests.stored_runs import COMPLETE, make_case, make_header, make_round, write_run


def whole(folder: Path) -> bytes:
    return write_run(folder, [make_case()], make_round(make_case()), COMPLETE).read_bytes()


BAD: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "foreign": (lambda data: b'{"version": 3}\n' * 9, "line 1: ", "another program's file"),
    "future": (lambda data: data.replace(b'"schema":8', b'"schema":9', 1), "line 1: ", "upgrade ampbench"),
    "past": (lambda data: data.replace(b'"schema":8', b'"schema":7', 1), "line 1: ", "measure anew"),
    "unknown field": (lambda data: data.replace(b'"round":0', b'"ruond":0'), "line 3: ", "unknown field `ruond`"),
    "no number": (lambda data: data.replace(b'"items_per_step":', b'"items_per_step":1e999,"x":'), "line 3: ", ""),
    "zeros": (lambda data: data.replace(b"}\n", b"\0\0", 2), "line 1: ", ""),
    "cut gzip": (lambda data: gzip.compress(data)[:-20], "line ", "damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_one_line_with_its_name_and_the_lines_number(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, place, problem = BAD[what]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(spoil(whole(tmp_path)))
    before = path.read_bytes()
    for command in (["show", str(path)], ["run", "--resume", str(path)]):
        assert main(command) == 2
        (told,) = capsys.readouterr().err.splitlines()
        if what == "cut gzip" and command[0] == "run":
            place, problem = "", f"cannot resume {path}: it is compressed"
        assert told.startswith(f"ampbench: error: {path}, {place}" if place else "ampbench: error: ")
        assert problem in told
    assert path.read_bytes() == before


def replace_by_a_copy(path: Path) -> None:
    Path(shutil.copy(path, path.with_suffix(".copy"))).replace(path)


DONE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "its folder moved": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
    "replaced": replace_by_a_copy,
    "truncated": lambda path: os.truncate(path, 300),
    "appended to": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
}


@pytest.mark.parametrize("done", DONE)
def test_a_file_that_is_not_its_writers_any_more_is_written_no_further(done: str, tmp_path: Path) -> None:
    with RunWriter.create(tmp_path, make_header(), [make_case()]) as writer:
        writer.append(make_round(make_case()))
        DONE[done](writer.path)
        left = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
        with pytest.raises(StoreError, match="was moved, deleted, replaced or changed") as refused:
            writer.append(COMPLETE)
    assert str(refused.value).endswith("leave the file alone, then measure anew")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")} == left


def test_a_file_that_is_not_its_writers_any_more_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "run mlp --preset tiny --phase inference --rounds 2 --min-run-time 0.001 --no-isolation"
    appended: list[int] = []
    append = RunWriter.append

    def meddled(writer: RunWriter, *entries: object) -> None:
        appended.append(len(entries))
        if len(appended) == 4:
            writer.path.unlink()
        append(writer, *entries)  # type: ignore[arg-type]

    monkeypatch.setattr(RunWriter, "append", meddled)
    assert main([*command.split(), "--results", str(tmp_path)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"ampbench: error: {tmp_path / 'runs'}")
    assert "was moved, deleted, replaced or changed" in told
    assert len(appended) <= 5  # a footer may have been tried
    assert not [*tmp_path.rglob("*.jsonl")]


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_what_cannot_be_written_leaves_the_file_whole(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, real = make_case(), getattr(os, call)
    with RunWriter.create(tmp_path, make_header(), [case]) as writer:
        before = writer.path.read_bytes()

        def fail(descriptor: int, *data: bytes) -> int:
            if data:
                real(descriptor, data[0][:10])
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(StoreError, match=f"{os.strerror(code)}; the stored records are kept: mend this"):
                writer.append(make_round(case))
        assert writer.path.read_bytes() == before
        writer.append(make_round(case), COMPLETE)
    assert read_run(writer.path).complete
