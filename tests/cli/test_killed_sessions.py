"""Two hundred sessions that are killed at random: nothing finished is lost, nothing is left, and all of them go on.

Each chain begins a session, ends it by a random signal at a random moment (sometimes only a worker or server of it),
goes on, is ended again, and at last goes on undisturbed: it must then have what an undisturbed session has. The chains
of some seeds, of each kind one, start their sessions as a shell does, and so are killed while Python and torch are
imported, too; those of the others are forks (tests/cli/forked_sessions.py), and are killed while they work. With
AMPBENCH_NIGHT=1 there are 200 kills, else 20.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from ampbench.store import list_runs, read_run
from tests import stored_runs
from tests.cli import forked_sessions
from tests.cli.forked_sessions import CHAIN, Template

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGKILL, *forked_sessions.SIGNALS)
KILLS = 5
"""So many times each chain is killed, whatever is over before it could be."""
STARTED = (0, 6, 7)
"""The seeds of the chains whose sessions are started as a shell does."""
GONE_SECONDS = 60.0
"""So long the processes of a session that was killed may take to end; it is a limit, not an expectation."""
QUICK = ["--preset", "tiny", "--threads", "1"]
PRECISIONS = ["--precision", "fp32", "--precision", "bf16_autocast"]
RUN = ["run", "mlp", *QUICK, *PRECISIONS, "--rounds", "2", "--min-run-time", "0.02"]
SCOPE = ["study", "scope", "mlp", *QUICK, "--steps", "2", "--seconds", "50ms"]
KEEP = ["explain", "keep-fp32", "mlp", *QUICK, "--max-error", "3e-3", "--max-trials", "6"]
CASTS = ["explain", "casts", "mlp", *QUICK]
CHECK = ["check", "scaler", "--device", "cpu"]
AB = [
    *("ab", "mlp", *QUICK, "--phase", "inference", "--precision", "fp32", "--rounds", "1", "--min-run-time", "0.01"),
    *("--baseline", "git:HEAD", "--candidate", "here"),
]
REPORT = ["report", "-o", "page.html"]
CONVERT = ["convert", "latest", "--to", "junit", "-o", "runs.xml"]
RESUMED = RUN, SCOPE, KEEP, CHECK
SEEDS = ((RUN, 16), (KEEP, 4), (AB, 3), (SCOPE, 6), (CHECK, 4), (REPORT, 3), (CASTS, 2), (CONVERT, 2))
"""By the words of a session, the number of its chains."""
CHAINS = [(seed, words) for words, number in SEEDS for seed in range(number)]
assert len(CHAINS) * KILLS == 200
TRIED = CHAINS if os.environ.get("AMPBENCH_NIGHT") else [CHAINS[place] for place in (1, 17, 22, 34)]


@dataclass
class Chain:
    """Sessions in one folder: `folder` holds results/ and what they put into the temporary folder."""

    folder: Path
    seed: int
    template: Template | None
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    killed: int = 0
    forced: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.temporary.mkdir(parents=True, exist_ok=True)

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @contextlib.contextmanager
    def session(self, words: Sequence[str]) -> Iterator[tuple[Any, IO[bytes]]]:
        """Begin a session, a fork of the template where there is one; what it says goes to the file."""
        environment = {**os.environ, CHAIN: self.mark, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile() as said:
            if self.template is not None:
                yield self.template.start(words, environment, self.folder, said), said
                return
            yield (
                subprocess.Popen(
                    [sys.executable, "-m", "ampbench", *words],
                    cwd=self.folder,
                    env=environment,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    preexec_fn=heed_signals,  # noqa: PLW1509 - nothing else runs in this process
                ),
                said,
            )

    def end(self, words: Sequence[str]) -> tuple[int, str]:
        """Run a session to its end and return its exit code and what it said."""
        with self.session(words) as (process, said):
            return process.wait(timeout=600), text_of(said)

    def kill(self, words_now: Callable[[], Sequence[str]], seconds: float, *, alone: bool = True) -> None:
        """Begin a session and end it within `seconds`; not `alone`, perhaps one process of it alone.

        One that is over before is followed by another, which has half as long.
        """
        before = self.killed
        while self.killed == before:
            self._try_to_kill(words_now(), seconds, alone)
            seconds /= 2

    def _try_to_kill(self, words: Sequence[str], seconds: float, alone: bool) -> None:
        with self.session(words) as (process, file):
            try:
                process.wait(timeout=self.random.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                process_ended = self.disturb(process, alone) == process.pid
                code = process.wait(timeout=600)
                self.forced += code == -signal.SIGKILL
                self.killed += code != 0 or not process_ended  # it may have come to its end just before
            said = text_of(file)
        assert "internal error" not in said, said
        # Python itself may still be starting, or be at its end already, where it says "KeyboardInterrupt: "
        assert "Traceback" not in said or said.rstrip(": \n").endswith("KeyboardInterrupt"), said
        self.check_gone()

    def disturb(self, process: Any, alone: bool) -> int:
        """End a session, or one process of it, and return which."""
        which, number = process.pid, self.random.choice(SIGNALS)
        others = [pid for pid in self.alive() if pid != process.pid]
        if not alone and others and self.random.random() < 0.2:
            which, number = self.random.choice(others), signal.SIGKILL
        try:
            os.kill(which, number)
        except ProcessLookupError:
            which = process.pid
            os.kill(which, number)
        return int(which)

    def alive(self) -> list[int]:
        """Return the processes that this chain began and that still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if f"{CHAIN}={self.mark}".encode() in environment:
                    found.append(int(entry.name))
        return found

    def check_gone(self) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.alive() == []

    def left(self) -> list[Path]:
        """Return what lies in the temporary folder, but for the folder that torch's compiler keeps there."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]

    def files(self) -> list[Path]:
        """Return the runs; a file that a session had only opened when it was killed holds nothing, and is none."""
        found = list_runs(self.results) if (self.results / "runs").is_dir() else []
        return [path for path in found if path.stat().st_size]

    def going_on(self, words: Sequence[str]) -> list[str]:
        """Return what continues the run of this chain, or begins it."""
        if not (words in RESUMED and self.files()):
            return [*words, "--results", "results"]
        verb = words[:1] if words[0] in ("run", "check") else words[:2]
        return [*verb, "--resume", self.files()[0].stem, "--results", "results"]

    def prepare(self, words: Sequence[str]) -> None:
        """Make what a session needs: a repository with one commit, or a stored run."""
        if words == AB:
            (self.folder / ".gitignore").write_text("alone\nresults\ntmp\n")
            identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
            for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
                subprocess.run(["git", *identity, *command], cwd=self.folder, check=True)
        if words in (REPORT, CONVERT):
            case = stored_runs.make_case()
            stored_runs.write_run(self.results, [case], stored_runs.make_round(case), stored_runs.COMPLETE)


def heed_signals() -> None:
    """Take signals as a program does that a shell starts, however this one was started."""
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)


def text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.fixture
def chain(tmp_path: Path, request: pytest.FixtureRequest, template: Template) -> Iterator[Chain]:
    found = Chain(tmp_path, request.param, None if request.param in STARTED else template)
    yield found
    for pid in found.alive():
        os.kill(pid, signal.SIGKILL)


def entries(path: Path) -> list[str]:
    """Return what a run holds: its entries by kind, case and number, but for what became of sessions."""
    found = []
    for line in path.read_text().splitlines():
        ((kind, record),) = json.loads(line).items()
        if kind not in ("header", "footer"):
            names = ("case_id", "check", "workload", "precision", "phase", "round", "control", "scope")
            found.append(" ".join([kind, *(str(record[name]) for name in names if name in record)]))
    return sorted(found)


def whole_lines(path: Path) -> bytes:
    """Return what of a file no later session may change: its whole lines but the header, which resuming may rewrite."""
    data = path.read_bytes()
    return data[data.find(b"\n") + 1 : data.rfind(b"\n") + 1]


@pytest.mark.parametrize(
    ("chain", "words"), TRIED, indirect=["chain"], ids=[f"{words[0]}-{words[1]}-{seed}" for seed, words in TRIED]
)
def test_a_session_that_is_killed_again_and_again_goes_on_to_all_that_it_was_to_have(
    chain: Chain, words: Sequence[str]
) -> None:
    alone = Chain(chain.folder / "alone", 0, chain.template)
    for each in (alone, chain):
        each.prepare(words)
    began = time.monotonic()
    code, said = alone.end(alone.going_on(words))
    seconds, kept = time.monotonic() - began, b""
    assert code == 0, said
    for _ in range(KILLS):
        chain.kill(lambda: chain.going_on(words), seconds, alone=words[0] != "run")
        for path in chain.files():
            read_run(path)
        for path in (chain.folder / "page.html", chain.folder / "runs.xml"):
            assert not path.exists() or path.read_text().rstrip().endswith(("</html>", "</testsuites>"))
        if words in RESUMED and chain.files():
            (path,) = chain.files()
            assert whole_lines(path).startswith(kept), "what was finished is gone"
            kept = whole_lines(path)
    code, said = chain.end(chain.going_on(words))
    assert code == 0, said
    assert [path for path in chain.folder.iterdir() if path.name.startswith(".page")] == []
    assert chain.left() == [] or (words == AB and chain.forced)  # only SIGKILL leaves its checkout
    if words in RESUMED:
        (path,), (whole,) = chain.files(), alone.files()
        assert [line for line in entries(path) if not line.startswith("failure ")] == entries(whole), said
        assert whole_lines(path).startswith(kept)
