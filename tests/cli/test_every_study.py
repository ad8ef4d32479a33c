"""All studies alike: what they refuse, how they are interrupted, killed and go on, what a dying worker or disk leaves.

Each piece of work is done once, on a tiny network, in this process; who asks for it again is told the same.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ampbench import store
from ampbench.drive.servers import InProcess
from ampbench.errors import NothingToRunError
from ampbench.records.kinds import CHECK, KEEP_FP32, KINDS, WATCH, verb_of
from ampbench.records.measured import Failure
from ampbench.records.wire import Reply, Request, request_line
from ampbench.store import list_runs, read_run
from ampbench.studies.study import options_of, study_of
from tests.stored_runs import RUN, make_case, write_run

Run = Callable[..., Any]
MADE = [kind for kind in KINDS if kind != WATCH]
"""The kinds whose verbs are tested: all that have one."""
PIECES = [name for name in MADE if name != KEEP_FP32]
"""Those whose work is done; weighing sets of modules takes half a minute, and test_killed_sessions.py does it."""
RESUMED = [name for name in MADE if KINDS[name].resumed]
QUICK = {"seconds": "5ms", "seeds": "1", "operation": "copy", "dtype": "fp32,bf16", "setting": "default"}
"""What options of these names are given, so that a piece takes milliseconds; `steps` are as few as may be."""


OWN = {CHECK: ["stale-weight-cast", "rms-norm-half", "--device", "cpu"]}
"""What verbs of their own are given: checks that leave nothing behind in this process."""


def command(kind: str) -> list[str]:
    """A command of a kind that has two pieces of work at least."""
    words = verb_of(kind).split() + OWN.get(kind, [])
    words += ["mlp", "simple_conv", "--preset", "tiny"] if of_cases(kind) else []
    for option in options_of(study_of(kind)):
        if option.name in QUICK:
            words += [f"--{option.name}", QUICK[option.name]]
        elif option.name == "steps":
            words += ["--steps", str(max(1, int(option.least or 0)))]
    return words


def of_cases(kind: str) -> bool:
    return study_of(kind).selects is not None


class Replayed:
    """A channel that remembers what it was told; `ending` may end a request of a piece, given its number from 0."""

    known: dict[bytes, Reply] = {}  # noqa: RUF012 - of all tests together
    process: InProcess | None = None

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ending: Callable[[int, Request], Reply | None] = lambda number, request: None
        self.opens: Callable[[], None] = lambda: None

    def opened(self, *_: object, **__: object) -> "Replayed":
        self.opens()
        return self

    def serve(self, request: Request) -> Reply:
        if request.task not in ("environment", "describe"):
            self.asked.append(request)
            if (reply := self.ending(len(self.asked) - 1, request)) is not None:
                return reply
        key = request_line(msgspec.structs.replace(request, memory_limit_bytes=None))  # what is free now
        if key not in self.known:
            Replayed.process = Replayed.process or InProcess()
            self.known[key] = Replayed.process.serve(request)
        return self.known[key]

    def close(self) -> None:
        pass


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replayed]:
    found = Replayed()
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", found.opened)
    monkeypatch.setattr("ampbench.studies.devices_measure.rule_ops", lambda: ["aten::addmm", "aten::sum"])
    yield found
    if Replayed.process is not None:
        Replayed.process.close()


def interrupting(at: int) -> Callable[[int, Request], Reply | None]:
    def ending(number: int, request: Request) -> Reply | None:
        if number == at:
            raise KeyboardInterrupt
        return None

    return ending


def starts_no_more() -> None:
    raise NothingToRunError("no worker could start: no more processes")


def last_piece(kind: str, channel: Replayed, ampbench: Run, tmp_path: Path) -> int:
    """The number of the request that begins what is left to do after some of it was seen."""
    ampbench(*command(kind), "--results", "whole")
    asked, channel.asked = channel.asked, []
    cases = [request.case.case_id if request.case else str(number) for number, request in enumerate(asked)]
    return next(number for number, case in enumerate(cases) if case != cases[0])


MISTAKES = (
    (["mpl"], "unknown workload 'mpl': did you mean mlp?"),
    (["none.py:make"], "there is no file none.py"),
    (["mlp", "--precision", "bf61_autocast"], "unknown precision 'bf61_autocast'"),
    (["mlp", "--device", "cud"], "unknown device 'cud': did you mean cuda?"),
    (["mlp", "--json", "--format", "csv"], "contradict each other"),
    (["mlp", "--presett", "tiny"], "no such option '--presett'"),
    (["--device", "cud"], "unknown device 'cud': did you mean cuda?"),
    (["--json", "--format", "csv"], "contradict each other"),
    (["--labl", "a"], "no such option '--labl'"),
)


def mistakes(kind: str) -> Iterator[tuple[list[str], str]]:
    """Yield what cannot be meant of a kind, and what is said of it."""
    yield from (each for each in MISTAKES if of_cases(kind) != each[0][0].startswith("--"))
    study = study_of(kind)
    if study.selects is not None and not study.selects.workloads:
        yield [], f"ampbench {verb_of(kind)} needs a workload: name one, as in `ampbench {verb_of(kind)} mlp`"
    if study.selects is not None and study.selects.among and "fp32" not in study.selects.among:
        yield ["mlp", "--precision", "fp32"], f"{verb_of(kind)} is not for fp32: give "
    for option in options_of(study):
        flag = f"--{option.name.replace('_', '-')}"
        if option.seconds:
            yield [flag, "0"], f"{flag} must be above 0"
            yield [flag, "soon"], "'soon' is not a time such as 90, 250ms, 2m or 1h"
        elif option.least:
            yield [flag, "0"], f"'{flag}': 0 is not in the range {option.least}<=x"
            yield [flag, "few"], f"'{flag}': 'few' is not a valid"
    if kind in RESUMED:
        yield ["--resume", "latest"], f"--resume needs the id of a run of ampbench {verb_of(kind)}: latest is one that"
        yield ["--resume", RUN, "--threads", "2"], "--resume takes the selection and the settings from the run: leave"
        yield ["--resume", RUN], "there is no results folder results"


@pytest.mark.parametrize(("kind", "words", "message"), [(kind, *each) for kind in MADE for each in mistakes(kind)])
def test_a_mistake_is_one_line_and_starts_nothing(
    kind: str, words: list[str], message: str, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda preload: pytest.fail("a server was started"))
    told = ampbench(*verb_of(kind).split(), *words)
    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert message in told.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_of_another_kind_and_one_that_does_not_say_what_it_was_asked_for_are_refused(
    kind: str, tmp_path: Path, ampbench: Run
) -> None:
    case = make_case()
    write_run(tmp_path / "results", [case])
    told = ampbench(*verb_of(kind).split(), "--resume", RUN)
    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert f"measures: --resume goes on with a run of ampbench {verb_of(kind)}" in told.err
    if of_cases(kind):
        write_run(tmp_path / "other", [case], explains=kind)
        told = ampbench(*verb_of(kind).split(), "--resume", RUN, "--results", "other")
        assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
        assert "has no record of its request: begin a new run" in told.err


@pytest.mark.parametrize("kind", PIECES)
def test_ctrl_c_before_anything_was_seen_leaves_no_run(
    kind: str, channel: Replayed, tmp_path: Path, ampbench: Run
) -> None:
    channel.ending = interrupting(0)
    said = ampbench(*command(kind))
    assert (said.code, said.out, said.err) == (130, "", "interrupted: nothing was seen\n")
    assert list_runs(tmp_path / "results") == []


def elsewhere(text: str) -> str:
    """Return a run as one that was begun on another host."""
    return re.sub(r'"host":"[^"]*"', '"host":"elsewhere"', text, count=1)


def other_cases(text: str) -> str:
    """Return a run as one whose selection has lost a workload since; one of no cases as it is."""
    return text.replace('"workloads":["mlp","simple_conv"]', '"workloads":["mlp"]', 1)


@pytest.mark.parametrize("kind", PIECES)
def test_ctrl_c_during_a_piece_keeps_what_was_seen_and_the_rest_is_done_later(
    kind: str, channel: Replayed, tmp_path: Path, ampbench: Run
) -> None:
    channel.ending = interrupting(last_piece(kind, channel, ampbench, tmp_path))
    said = ampbench(*command(kind))
    (file,) = list_runs(tmp_path / "results")
    assert said.code == 130
    assert "interrupted: what was seen until then is kept\n" in said.err
    assert ampbench("show", file.stem).out == said.out
    how = f"ampbench {verb_of(kind)} --resume {file.stem}"
    assert (f"left; {how} goes on\n" in said.err) == (kind in RESUMED)
    if kind not in RESUMED:
        return
    channel.ending = lambda number, request: None
    kept = file.read_text()
    for change, problem in ((elsewhere, "its host was elsewhere"), (other_cases, "gives other cases")):
        if change(kept) != kept:
            file.write_text(change(kept))
            refused = ampbench(*how.split()[1:])
            assert (refused.code, refused.out, problem in refused.err) == (2, "", True), refused.err
    file.write_text(kept)
    again = ampbench(*how.split()[1:])
    assert (again.code, "goes on" in again.err) == (0, False)
    assert read_run(file).ended == "complete"
    done = ampbench(*how.split()[1:])
    assert (done.code, done.out) == (0, again.out)
    assert done.err == f"run {file.stem} is complete: nothing is left to do\n"


@pytest.mark.parametrize("kind", PIECES)
def test_ctrl_c_while_the_finished_run_is_read_says_that_it_is_stored(
    kind: str, channel: Replayed, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store, "read_run", interrupting(0).__get__(0))
        said = ampbench(*command(kind))
    (file,) = list_runs(tmp_path / "results")
    assert (said.code, said.out) == (130, "")
    assert said.err == f"interrupted: the result is stored, and ampbench show {file.stem} shows it\n"
    assert ampbench("show", file.stem).code == 0


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", PIECES)
def test_what_a_killed_worker_was_asked_is_asked_once_more_then_it_is_a_row(
    kind: str, times: int, channel: Replayed, tmp_path: Path, ampbench: Run
) -> None:
    def killed(number: int, request: Request) -> Reply | None:
        case_id = request.case.case_id if request.case else ""
        gone = Failure(case_id=case_id, stage=request.task, cause="killed", message="killed from outside")
        return Reply(failure=gone) if number < times else None

    channel.ending = killed
    said = ampbench(*command(kind))
    assert said.code == (0 if times == 1 else 3)
    assert ("killed from outside" in said.out) == (times == 2)


@pytest.mark.parametrize("kind", PIECES)
def test_a_server_that_starts_no_more_leaves_what_was_seen_and_how_to_go_on(
    kind: str, channel: Replayed, tmp_path: Path, ampbench: Run
) -> None:
    last = last_piece(kind, channel, ampbench, tmp_path)

    def dies(number: int, request: Request) -> Reply | None:
        if number < last:
            return None
        channel.opens = starts_no_more
        case_id = request.case.case_id if request.case else ""
        return Reply(failure=Failure(case_id=case_id, stage=request.task, cause="killed", message="gone"))

    channel.ending = dies
    said = ampbench(*command(kind))
    (file,) = list_runs(tmp_path / "results")
    assert said.code == 5
    assert said.out == ampbench("show", file.stem).out
    told = said.err.splitlines()
    assert "interrupted: what was seen until then is kept" in told
    assert told[-1] == "ampbench: error: no worker could start: no more processes"
    assert any(line.endswith(f"--resume {file.stem} goes on") for line in told) == (kind in RESUMED)
    assert [footer.ended for footer in read_run(file).footers] == ["interrupted"]


@pytest.mark.parametrize("kind", PIECES)
def test_what_finds_no_room_on_the_disk_is_told_all_the_same(
    kind: str, channel: Replayed, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ampbench(*command(kind), "-v", "--results", "whole").out
    write, line = os.write, f'{{"{KINDS[kind].found.line}":'.encode()

    def full(descriptor: int, data: bytes) -> int:
        if line in bytes(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("os.write", full)
    said = ampbench(*command(kind), "-v")
    assert said.code == 2
    assert said.out.splitlines()[0].split(" · ")[0] == whole.splitlines()[0].split(" · ")[0]
    assert "No space left on device" in said.err
    for file in list_runs(tmp_path / "results"):
        stored = read_run(file)
        assert not stored.cut
        assert not stored.found.get(KINDS[kind].found.line)
