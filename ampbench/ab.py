"""An A/B session: two arms measured in interleaved blocks, stored as two runs, judged as it proceeds.

`compare` makes all its decisions, so that a later verdict from the files is the one that ended the session.

A block is one round per case and lane, every lane with its own new server. A lane is an arm, or the control: the
baseline once more. The servers of a block start together and live at the same time. Case by case, the lanes take turns
build by build, in random order. A disturbance longer than a build then affects all lanes alike, and without a change
the lanes of a block are exchangeable, which makes the test on their differences exact (docs/statistics.md).

On an accelerator the lanes of a case have their rounds one after the other, in random order, each alone on the device:
a large case may find no room with the contexts of other lanes.
"""

import dataclasses
import math
import os
import random
import re
import secrets
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec import structs

from ampbench.core.precisions import is_emulated
from ampbench.core.recipes import parse_optimizer
from ampbench.core.units import counted, format_duration, parse_value
from ampbench.drive import session
from ampbench.drive.planning import NO_TIME, PlannedCase, check_selection, make_plan
from ampbench.drive.rounds import Turn, kept, passes, request_of, with_processes
from ampbench.drive.servers import ONLY, OpenChannel, Pool, ServerChannel, ask_environment
from ampbench.errors import AmpbenchError, NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.judge.compare import compare, default_threshold
from ampbench.judge.deciding import CONFIRMATION_BLOCKS, LOOKS
from ampbench.judge.exact import ThresholdOf
from ampbench.judge.pairing import pair_cases
from ampbench.records.case import OF_CASES, Environment, WorkloadSource
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.changes import OUTCOME, Change, ChangeCode, ChangeStatus
from ampbench.records.measured import Failure, Round, Skip
from ampbench.records.rules import RuleProbe
from ampbench.records.run import Arm, Entry, Footer, Selection, Settings
from ampbench.records.wire import LATE, MAX_SAMPLES_PER_ROUND, REST, ROUND, Nothing, ask
from ampbench.store import RunWriter, read_run
from ampbench.studies import check, rules
from ampbench.studies.casts import TASK
from ampbench.studies.check import ChecksAsked
from ampbench.studies.work import ask_worker, filled
from ampbench.workloads.index import WORKLOADS

HERE = "here"
"""An arm of this interpreter and the current files."""

CASE_SETTINGS = ("threads", "precision", "path", "optimizer", *OF_CASES)
"""The settings of an arm that are options or of cases; an upper-case name is a variable, any other a parameter."""
THREADS = "threads"
"""The setting in `Settings`; the others select cases."""

_SETTING = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRequest:
    """A requested arm: `python` is an executable, `ref` a git commit ("" for the current files).

    `settings` are NAME=VALUE: environment variables, `CASE_SETTINGS` and parameters of workloads.
    """

    given: list[str]
    python: str = sys.executable
    ref: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables among the settings."""
        return {name: value for name, value in self.settings.items() if name.isupper()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A commit's files in a separate folder: `root` is the copy of the repository at `repository`."""

    commit: str
    root: Path
    repository: Path

    @property
    def paths(self) -> list[Path]:
        """A worker's first import paths: the root and, if the project has one, its src/."""
        return [self.root, *(folder for folder in [self.root / "src"] if folder.is_dir())]

    def translated(self, path: Path) -> Path:
        """Return this checkout's copy of `path`, if that is in the repository; any other path unchanged."""
        return self.root / path.relative_to(self.repository) if path.is_relative_to(self.repository) else path


def parse_arm(option: str, values: Sequence[str]) -> ArmRequest:
    """Return the arm of the values of `option` ("--baseline").

    Each is `here`, a Python executable or its environment's folder, `git:REF`, or NAME=VALUE. Raises `UsageError` for
    any other value, and for two interpreters or two commits.
    """
    pythons, refs, settings = [], [], {}
    for text in values:
        setting = _SETTING.fullmatch(text)
        if text.startswith("git:"):
            refs.append(text.removeprefix("git:"))
            if not refs[-1]:
                raise UsageError(f"{option} git: names no commit: say git:REF, as in git:main")
        elif setting:
            name = setting["name"].replace("-", "_")
            name = name if name in CASE_SETTINGS else setting["name"]
            if name in settings:
                raise UsageError(f"{option}: {name} is given twice")
            settings[name] = setting["value"]
        elif text != HERE:
            pythons.append(_interpreter(option, text))
    if len(pythons) > 1 or len(refs) > 1:
        raise UsageError(f"{option} names two {'interpreters' if len(pythons) > 1 else 'commits'}: an arm has one")
    return ArmRequest(
        given=list(values) or [HERE], python=pythons[0] if pythons else sys.executable, ref="".join(refs),
        settings=settings,
    )  # fmt: skip


def selection_of(arm: ArmRequest, selection: Selection) -> Selection:
    """Return `selection` with the arm's settings."""
    lists = {"precision": "precisions", "path": "paths"}
    changes: dict[str, object] = {}
    overrides = dict(selection.overrides)
    for name, value in arm.settings.items():
        if name in lists:
            changes[lists[name]] = [value]
        elif name == "optimizer":
            changes["recipes"] = [parse_optimizer(value).spelling]
        elif name != THREADS and not name.isupper():
            overrides[name] = parse_value(value)
    return structs.replace(selection, overrides=overrides, **changes)


def settings_of(arm: ArmRequest, settings: Settings) -> Settings:
    """Return `settings` with the arm's number of threads, if it sets one."""
    threads = arm.settings.get(THREADS)
    if threads is None:
        return settings
    if not threads.isdecimal() or not 1 <= int(threads) <= 4096:
        raise UsageError(f"threads={threads}: give a whole number from 1 to 4096")
    return structs.replace(settings, threads=int(threads))


def source_in(checkout: Checkout | None, source: WorkloadSource) -> WorkloadSource:
    """Return the arm's source of a workload: a user's file inside the repository comes from the arm's commit.

    Raises `UsageError` where the commit does not have the file.
    """
    if checkout is None or not source.module.endswith(".py"):
        return source
    path = checkout.translated(Path(source.module))
    if not path.is_file():
        raise UsageError(f"commit {checkout.commit[:12]} has no file {path.relative_to(checkout.root)}")
    return structs.replace(source, module=str(path))


@contextmanager
def checked_out(option: str, arm: ArmRequest) -> Iterator[Checkout | None]:
    """Yield the files of the arm's commit in a temporary folder; None where the arm names no commit.

    git writes them by an index of their own, so that nothing in the repository changes. Raises `UsageError` outside a
    repository and for an unknown reference.
    """
    if not arm.ref:
        yield None
        return
    repository = Path(_git(option, "rev-parse", "--show-toplevel"))
    commit = _commit(option, arm.ref)
    with tempfile.TemporaryDirectory(prefix="ampbench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder) / repository.name
        root.mkdir()
        for arguments in (["read-tree", commit], ["checkout-index", "--all", f"--prefix={root}/"]):
            _git(option, *arguments, folder=repository, GIT_INDEX_FILE=f"{folder}/index")
        yield Checkout(commit=commit, root=root, repository=repository)


def left_out(arms: Iterable[ArmRequest]) -> str:
    """Return a note where every arm is a commit and the current files have changes, which no arm includes."""
    if not all(arm.ref for arm in arms):
        return ""
    changed = _git("--candidate", "status", "--porcelain", "--untracked-files=no").splitlines()
    files = counted(len(changed), "file")
    return f"neither arm has your uncommitted changes ({files}): {HERE} has the current files" if changed else ""


def _interpreter(option: str, text: str) -> str:
    """Return the Python executable of `text`: a path, a name on the PATH, or an environment's folder."""
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    executable = shutil.which(str(path))
    if executable is None:
        raise UsageError(
            f"{option} {text}: there is no such Python; give the path of an executable or its environment, git:REF, "
            f"NAME=VALUE or {HERE}"
        )
    return str(Path(os.path.abspath(executable)))  # noqa: PTH100 - resolving the link would lose the environment


def _commit(option: str, ref: str) -> str:
    try:
        return _git(option, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except UsageError:
        names = _git(option, "for-each-ref", "--format=%(refname:short)").splitlines()
        raise UnknownNameError(f"commit in {option} git:{ref}, no such reference:", ref, names) from None


def _git(option: str, *arguments: str, folder: Path | None = None, **variables: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments], capture_output=True, text=True,
            check=False, cwd=folder, env={**os.environ, **variables},
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{option} git:REF needs git, which cannot be started: {error.strerror}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        if "not a git repository" in reason:
            raise UsageError(
                f"{option} git:REF is a commit of the repository that the current folder is in: {Path.cwd()} is in "
                "none (not a git repository)"
            )
        raise UsageError(f"{option}: git {arguments[0]} failed: {reason}")
    return done.stdout.strip()


def folder_in(checkout: Checkout | None) -> Path | None:
    """Return the checkout's copy of the current folder, or its root if the commit lacks the folder."""
    if checkout is None:
        return None
    folder = checkout.translated(Path.cwd())
    return folder if folder.is_dir() else checkout.root


OPEN = frozenset({ChangeCode.UNDECIDED, ChangeCode.TAIL_UNDECIDED, ChangeCode.TOO_FEW_BLOCKS, ChangeCode.UNFIT_MACHINE})
"""The codes with which a case is measured further."""
START_SECONDS = 3.0
"""The cost of starting and ending the servers of a block (benchmarks/self): each imports torch."""
BUILD_SECONDS = 0.04
"""The cost of a build for a step of any length: making it, warming up, and `TIMING_SECONDS`."""
TIMING_SECONDS = 0.025
"""The timing of a build: shorter than most disturbances, so that the lanes of a case share them."""
FEWEST_BUILDS, MOST_BUILDS = 6, 12

FEWEST_CONFIRMING = 5
"""The least blocks with which a sign test reaches the 5% of a confirmation: 2**-5 = 3%."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One column of the blocks: its planned cases by pair, the function that opens its servers, its writer.

    `control` marks the baseline's second measurement.
    """

    name: str
    cases: Mapping[str, PlannedCase]
    settings: Settings
    open_channel: OpenChannel
    write: Callable[[Entry], None]
    control: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look at the blocks so far: decided pairs, and `fired` pairs, whose change needs confirmation."""

    decided: Collection[str] = ()
    fired: Collection[str] = ()


class BlockSession:
    """Measures pairs of cases in blocks until all are decided, or blocks or time are used up.

    The first of `lanes` is the baseline, the last the candidate. `look` is called after each of `LOOKS`, after the last
    block, and when time runs out. A pair that fails in a lane is not measured again. `watch` gets a line about the
    progress, and each failure; `tell` a line about cases without time.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        look: Callable[[], Look],
        *,
        blocks: int = LOOKS[-1],
        max_seconds: float | None = None,
        watch: Callable[[str, Entry | None], None],
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._lanes, self._look, self._blocks, self._max_seconds = lanes, look, blocks, max_seconds
        self._watch, self._tell_user, self._clock, self._began = watch, tell, clock, clock()
        self._open = list(lanes[0].cases)
        self._failed: dict[str, set[str]] = {}  # the lanes in which a pair failed
        self._timed: set[str] = set()
        self._done = self._numbered = 0
        self._block_seconds: list[float] = []
        self._start_seconds: list[float] = []

    def measure_passes(self) -> None:
        """Measure memory and divergence of every case of the two arms, once."""
        for lane in self._lanes:
            if lane.control:
                continue
            pair_of = {planned.case.case_id: pair for pair, planned in lane.cases.items()}
            wanted = [planned for pair, planned in lane.cases.items() if pair in self._open]
            with Pool({lane.name: lane.open_channel}).open() as pool:
                for turn in with_processes([turn for turn in passes(wanted) if turn.task != LATE]):
                    pair = pair_of[turn.planned.case.case_id]
                    if pair not in self._open or self._left() <= 0:
                        continue
                    self._tell(f"{turn.task.name} of {lane.name}", pair)
                    reply = pool.serve(request_of(turn, lane.settings, 0), lane.name)
                    self._store(lane, pair, turn.task.outcome(reply, turn.planned.case))

    def measure_rounds(self) -> str:
        """Measure blocks; return the end of the session: "complete" or "out of time"."""
        ended = "complete"
        while self._open and self._done < self._blocks:
            if not self._time_for_another():
                ended = "out of time"
                break
            began = self._clock()
            self._measure_block(self._open, self._lanes)
            self._block_seconds.append(self._clock() - began)
            self._done += 1
            if self._done in LOOKS or self._done == self._blocks:
                ended = self._looked()
        if ended == "out of time" and self._open and self._done not in (0, *LOOKS):
            self._looked()
        untimed = [pair for pair in self._open if pair not in self._timed]
        if ended == "out of time" and untimed:
            of_all = f"{len(untimed)} of {counted(len(self._lanes[0].cases), 'case')}"
            self._tell_user(
                f"without a time: {of_all}: --budget was over before a first block; give more, or fewer cases"
            )
        self._measure_survivors()
        return ended

    def _looked(self) -> str:
        """Look, confirm fired pairs, and close decided ones; return "out of time" if time has run out, else
        "complete"."""
        look = self._look()
        fired = [pair for pair in self._open if pair in look.fired]
        self._open = [pair for pair in self._open if pair not in look.decided]
        lanes = [lane for lane in self._lanes if not lane.control]
        for _ in range(CONFIRMATION_BLOCKS):
            fired = [pair for pair in fired if pair in self._open]
            if fired and self._left() <= 0:
                return "out of time"
            if fired:
                self._measure_block(fired, lanes, confirmation=True)
        self._open = [pair for pair in self._open if pair not in fired]
        return "complete"

    def _measure_survivors(self) -> None:
        """Measure a round of pairs that failed in one arm before the other arm had one, to show that it runs there."""
        for arm, failed_arm in ((self._lanes[0], self._lanes[-1]), (self._lanes[-1], self._lanes[0])):
            pairs = [
                pair for pair, names in self._failed.items()
                if failed_arm.name in names and arm.name not in names and pair not in self._timed
            ]  # fmt: skip
            if pairs:
                self._measure_block(pairs, [arm])

    def _measure_block(self, pairs: Sequence[str], lanes: Sequence[Lane], confirmation: bool = False) -> None:
        """Measure one round of every pair in every lane."""
        number, self._numbered = self._numbered, self._numbered + 1
        draw = random.Random(f"{lanes[0].settings.schedule_seed}/{number}")
        began = self._clock()
        self._tell("starting servers", "")
        starting = draw.sample(list(lanes), len(lanes))
        with Pool({lane.name: lane.open_channel for lane in starting}).open() as pool:
            self._start_seconds.append(self._clock() - began)
            for pair in draw.sample(list(pairs), len(pairs)):
                self._tell("confirming" if confirmation else "timing", pair)
                self._measure_pair(pair, lanes, pool, number, draw, confirmation)

    def _measure_pair(
        self, pair: str, lanes: Sequence[Lane], pool: Pool, number: int, draw: random.Random, again: bool
    ) -> None:
        """Measure one round in every lane, on a CPU build by build in turns; store them all, or the first failure."""
        on_cpu = lanes[0].cases[pair].case.device == "cpu"
        builds = lanes[0].settings.builds if on_cpu else 1
        parts: dict[str, list[Round]] = {lane.name: [] for lane in lanes}
        for _ in range(builds):
            for lane in draw.sample(list(lanes), len(lanes)):
                turn = Turn(ROUND, lane.cases[pair], number, lane.control, fresh=not parts[lane.name])
                request = request_of(
                    turn,
                    structs.replace(lane.settings, builds=1, min_run_seconds=lane.settings.min_run_seconds / builds),
                    number * len(self._lanes) + self._lanes.index(lane),
                    placement_seed=draw.getrandbits(48),
                    max_samples=MAX_SAMPLES_PER_ROUND // builds,  # the round's, divided by its builds
                )
                entry: Entry = turn.task.outcome(pool.serve(request, lane.name), turn.planned.case)
                if not on_cpu and len(lanes) > 1:  # free the device for the next lane
                    pool.serve(ask(REST, Nothing()), lane.name)
                if not isinstance(entry, Round):
                    self._store(lane, pair, entry)
                    return
                parts[lane.name].append(entry)
        for lane in lanes:
            self._store(lane, pair, structs.replace(joined(parts[lane.name]), confirmation=again))
        self._timed.add(pair)

    def _store(self, lane: Lane, pair: str, entry: Entry) -> None:
        """Store `entry`; a pair that failed, or that the worker cannot run, is not measured again.

        The control's failure is reported but not stored, because the control repeats the baseline, whose own rounds
        stay.
        """
        if not (lane.control and isinstance(entry, Failure)):
            entry = kept(lane.write, entry)
        if isinstance(entry, Failure | Skip):
            self._open = [open_pair for open_pair in self._open if open_pair != pair]
            self._failed.setdefault(pair, set()).add(lane.name)
            self._tell(lane.name, pair, entry if isinstance(entry, Failure) else None)

    def _time_for_another(self) -> bool:
        """Return whether time is left for another block and, after it, for confirming a change of one pair."""
        if not self._block_seconds:
            return self._left() > 0
        block, start = statistics.median(self._block_seconds), statistics.median(self._start_seconds)
        return self._left() > block + FEWEST_CONFIRMING * (start + (block - start) / len(self._open))

    def _left(self) -> float:
        return math.inf if self._max_seconds is None else self._max_seconds - (self._clock() - self._began)

    def _tell(self, doing: str, pair: str, failure: Failure | None = None) -> None:
        undecided = f"{counted(len(self._open), 'case')} undecided, {format_duration(self._clock() - self._began)}"
        doing = f"{undecided} · {doing} {pair}".rstrip()
        self._watch(f"{self._done} of {self._blocks} blocks at most: {doing}", failure)


def joined(parts: Sequence[Round]) -> Round:
    """Return one round of several builds, each measured as a round by one process on a CPU."""
    if len(parts) == 1:
        return parts[0]
    skipped = [part.skipped_steps for part in parts if part.skipped_steps is not None]
    cpu = [build for part in parts for build in part.cpu_samples or []]
    total = sum(part.seconds for part in parts)

    def share(name: str) -> float | None:
        known = [(getattr(part.fitness, name), part.seconds) for part in parts]
        return None if any(value is None for value, _ in known) else sum(value * s for value, s in known) / total

    shares = {name: share(name) for name in ("steal_share", "other_share", "waited_share")}
    return structs.replace(
        parts[-1],
        samples=[build for part in parts for build in part.samples],
        steps_per_sample=[steps for part in parts for steps in part.steps_per_sample],
        warmup_steps=[steps for part in parts for steps in part.warmup_steps],
        compile_seconds=parts[0].compile_seconds,
        skipped_steps=sum(skipped) if skipped else None,
        cpu_samples=cpu if all(part.cpu_samples is not None for part in parts) else None,
        fitness=structs.replace(parts[-1].fitness, **shares),
        seconds=total,
    )


Pools = Mapping[str, Pool]
"""The servers of each side, by its name."""
Tell = Callable[[str], None]
"""Gets a line about the current work or its failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedArm(session.Prepared):
    """An arm ready to measure: its selection, environment and plan, and the function that opens its servers."""

    request: ArmRequest
    checkout: Checkout | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedComparison:
    """Both arms, and the cases to measure: baseline's and candidate's, by the id of the baseline's.

    `notes` are surprising facts about the arms.
    """

    baseline: PreparedArm
    candidate: PreparedArm
    pairs: Mapping[str, tuple[PlannedCase, PlannedCase]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The limits of a session: the metrics' kinds, blocks and seconds.

    Cases that regressed are traced in both arms afterwards and, where their torch differs, autocast's rules are probed.
    """

    kinds: Collection[str]
    blocks: int = 32
    max_seconds: float | None = None
    threshold_of: ThresholdOf = default_threshold


@contextmanager
def prepare(
    selection: Selection, settings: Settings, baseline: ArmRequest, candidate: ArmRequest
) -> Iterator[PreparedComparison]:
    """Plan a session; every error in selection or arms is raised here, before any measurement.

    Commits stay checked out within the context. Raises `UsageError` for an arm that cannot measure, `NothingToRunError`
    where no case can be measured by both.
    """
    if settings.memory_limit_bytes is None:
        settings = structs.replace(settings, memory_limit_bytes=session.default_memory_limit())
    requests = {"--baseline": baseline, "--candidate": candidate}
    with ExitStack() as stack:
        for option, request in requests.items():
            _check_settings(option, request, selection)
        checkouts = {option: stack.enter_context(checked_out(option, request)) for option, request in requests.items()}
        paths = {option: checkout.paths if checkout else [] for option, checkout in checkouts.items()}
        if any(checkouts.values()):  # as a commit's, the current files come before an installed copy of the project
            root = Path(_git(HERE, "rev-parse", "--show-toplevel"))
            here = Checkout(commit="", root=root, repository=root).paths
            paths = {option: found or here for option, found in paths.items()}
        arms = [
            _prepared_arm(option, request, checkouts[option], paths[option], selection, settings)
            for option, request in requests.items()
        ]
        notes = [note] if (note := left_out([baseline, candidate])) else []
        yield PreparedComparison(baseline=arms[0], candidate=arms[1], pairs=_pairs(*arms), notes=notes)


def timed_for(prepared: PreparedComparison, seconds: float | None = None) -> PreparedComparison:
    """Return the same comparison with enough builds in a round for `seconds` of timing.

    Without `seconds`, a block measures for about as long as it starts servers: that costs the same for one case as for
    a hundred, and the fastest of more builds spreads less.
    """
    as_long_as_starts = START_SECONDS / (3 * len(prepared.pairs) * BUILD_SECONDS)
    wanted = round(as_long_as_starts if seconds is None else seconds / TIMING_SECONDS)
    builds = min(max(wanted, FEWEST_BUILDS), MOST_BUILDS)
    seconds = builds * TIMING_SECONDS if seconds is None else seconds
    baseline, candidate = (
        dataclasses.replace(arm, settings=structs.replace(arm.settings, builds=builds, min_run_seconds=seconds))
        for arm in (prepared.baseline, prepared.candidate)
    )
    return dataclasses.replace(prepared, baseline=baseline, candidate=candidate)


def measure(
    prepared: PreparedComparison,
    plan: Plan,
    results: Path,
    label: str,
    command: list[str],
    watch: Callable[[str, Entry | None], None],
    tell: Tell = lambda _: None,
) -> tuple[Path, Path, str]:
    """Measure; return the run files of baseline and candidate, and the end of the session.

    The end is "complete", "out of time" or "interrupted"; the files hold all that was measured. Explanations of
    regressions are appended to both afterwards; `tell` gets a line about traces and their failures.
    """
    name = secrets.token_hex(6)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                session.begin(
                    arm,
                    results,
                    label,
                    command,
                    commit=arm.checkout.commit if arm.checkout else None,
                    arm=Arm(session=name, name=role, given=arm.request.given, settings=dict(arm.request.settings)),
                )
            )
            for role, arm in (("baseline", prepared.baseline), ("candidate", prepared.candidate))
        ]
        timed = "time" in plan.kinds
        blocks = BlockSession(
            _lanes(prepared, writers, control=timed),
            lambda: _look(writers[0].path, writers[1].path, plan) if timed else Look(),
            blocks=plan.blocks if timed else 1,  # one block shows that a case still runs
            max_seconds=plan.max_seconds,
            watch=watch,
            tell=tell,
        )
        try:
            if {"memory", "accuracy"} & set(plan.kinds):
                blocks.measure_passes()
            ended = blocks.measure_rounds()
        except KeyboardInterrupt:
            ended = "interrupted"
        except NothingToRunError as error:  # a server cannot start
            _end(writers, "interrupted")
            show = shlex.join(["ampbench", "compare", *(str(writer.path) for writer in writers)])
            raise NothingToRunError(f"{error}; see the measurements: {show}") from error
        footer = ended
        if ended != "interrupted":
            try:
                findings = _compared(writers[0].path, writers[1].path, plan)
                devices = list(
                    dict.fromkeys(planned.case.device for pair in prepared.pairs.values() for planned in pair)
                )
                explain_sides(
                    _lanes(prepared, writers, control=False),
                    [prepared.baseline.environment, prepared.candidate.environment],
                    regressed_cases(findings, plan.kinds), devices, tell,
                )  # fmt: skip
            except KeyboardInterrupt:
                ended = "interrupted"  # the files have all verdicts
        _end(writers, footer)
        return writers[0].path, writers[1].path, ended


def _end(writers: Iterable[RunWriter], ended: str) -> None:
    for writer in writers:
        writer.append(Footer(ended=ended, finished_at=session.now()))


def _compared(baseline: Path, candidate: Path, plan: Plan) -> Sequence[Change]:
    return compare(read_run(baseline), read_run(candidate), plan.threshold_of).findings


def _look(baseline: Path, candidate: Path, plan: Plan) -> Look:
    """Return the decisions of the blocks so far."""
    findings = _compared(baseline, candidate, plan)
    times = [finding for finding in findings if finding.kind == "time"]
    fired = {finding.case.case_id for finding in times if finding.code is ChangeCode.UNCONFIRMED}
    going_on = {finding.case.case_id for finding in times if finding.code in OPEN}
    return Look(decided={finding.case.case_id for finding in times} - going_on - fired, fired=fired)


def _check_settings(option: str, request: ArmRequest, selection: Selection) -> None:
    """Raise `UsageError` for a setting that no option and no selected workload has, and for an invalid value.

    Users' workloads are checked once they are built.
    """
    settings_of(request, Settings())
    sources = check_selection(selection)
    known = {name for source in sources if source.builtin for name in WORKLOADS[source.name].sizes}
    others = [name for name in request.settings if not name.isupper() and name not in CASE_SETTINGS]
    for name in others if all(source.builtin for source in sources) else ():
        if name.rpartition(".")[2] not in known:
            raise UnknownNameError(f"setting in {option}", name, [*CASE_SETTINGS, *sorted(known)])
    check_selection(selection_of(request, selection))


def _prepared_arm(
    option: str,
    request: ArmRequest,
    checkout: Checkout | None,
    paths: list[Path],
    selection: Selection,
    settings: Settings,
) -> PreparedArm:
    arm_selection, settings = selection_of(request, selection), settings_of(request, settings)
    sources = check_selection(arm_selection)
    preload = session.preload_modules(arm_selection, sources)
    for source in sources:
        source_in(checkout, source)

    open_channel = partial(ServerChannel, request.python, preload, request.variables, paths, folder_in(checkout))
    try:
        pool = Pool({ONLY: open_channel}).open()
    except NothingToRunError as error:
        raise UsageError(f"{option}: {error}; give a Python that has this ampbench and torch") from error
    with pool:
        environment = ask_environment(pool, settings.threads)
        describe = session.describer(pool, settings)
        plan = make_plan(
            arm_selection, environment, lambda source, *given: describe(source_in(checkout, source), *given)
        )
    return PreparedArm(
        request=request,
        checkout=checkout,
        selection=arm_selection,
        settings=settings,
        environment=environment,
        plan=[dataclasses.replace(planned, source=source_in(checkout, planned.source)) for planned in plan],
        open_channel=open_channel,
    )


def _pairs(baseline: PreparedArm, candidate: PreparedArm) -> dict[str, tuple[PlannedCase, PlannedCase]]:
    """Return the cases that both arms can measure, by the id of the baseline's; `NothingToRunError` without any."""
    ours, theirs = ({planned.case.case_id: planned for planned in arm.plan} for arm in (baseline, candidate))
    settings = {**baseline.request.settings, **candidate.request.settings}
    paired = pair_cases([p.case for p in baseline.plan], [p.case for p in candidate.plan], settings)
    every = {first.case_id: (ours[first.case_id], theirs[second.case_id]) for first, second in paired}
    if emulated := next((case.precision for pair in paired for case in pair if is_emulated(case.precision)), ""):
        raise UsageError(NO_TIME.format(emulated))
    pairs = {case_id: (first, second) for case_id, (first, second) in every.items() if not (first.skip or second.skip)}
    if not pairs:
        reasons = dict.fromkeys(planned.skip for pair in every.values() for planned in pair if planned.skip)
        text = "; ".join(reasons) or "the arms have no case in common"
        raise NothingToRunError(f"nothing can run in both arms: {text}")
    return pairs


def _lanes(prepared: PreparedComparison, writers: list[RunWriter], control: bool) -> list[Lane]:
    """Return the lanes: baseline, control if there is one, candidate."""
    ours, theirs = ({case_id: pair[side] for case_id, pair in prepared.pairs.items()} for side in (0, 1))
    rows = (
        ("baseline", ours, prepared.baseline, writers[0]),
        ("control", ours, prepared.baseline, writers[0]),
        ("candidate", theirs, prepared.candidate, writers[1]),
    )
    return [
        Lane(name, cases, arm.settings, arm.open_channel, writer.append, control=name == "control")
        for name, cases, arm, writer in rows
        if control or name != "control"
    ]


MOST_CASES = 10
"""The number of regressed cases that are traced, worst first."""
TRACING = Tracing(time=True, seconds=1.0)


def regressed_cases(findings: Sequence[Change], kinds: Collection[str]) -> list[str]:
    """Return the ids of the cases with a regression of one of the `kinds`, worst first.

    Findings are sorted by importance. A case that fails now cannot be traced and is left out.
    """
    worse = [finding for finding in findings if finding.status is ChangeStatus.REGRESSED]
    gone = {finding.case.case_id for finding in worse if finding.kind == OUTCOME}
    ids = dict.fromkeys(finding.case.case_id for finding in worse if finding.kind in kinds)
    return [case_id for case_id in ids if case_id not in gone]


def explain_sides(
    sides: Sequence[Lane], environments: Sequence[Environment], case_ids: Sequence[str], devices: Sequence[str],
    tell: Tell,
) -> None:  # fmt: skip
    """Trace `case_ids`, the worst first, on both sides.

    Where their torch differs, autocast's rules and known defects are checked on `devices`, too. A case that cannot be
    traced or probed is reported; the comparison stays. Raises `StoreError` where a record cannot be stored.
    """
    try:
        with ExitStack() as stack:
            pools = {side.name: stack.enter_context(Pool({ONLY: side.open_channel})) for side in sides}
            retrace(sides, case_ids, pools, tell)
            torches = {(environment.torch_version, environment.torch_commit) for environment in environments}
            if devices and len(torches) > 1:
                probe_and_check(sides, environments[0], devices, pools, tell)
    except StoreError:
        raise
    except AmpbenchError as error:
        tell(f"no more can be explained: {error}")


def retrace(sides: Sequence[Lane], case_ids: Sequence[str], pools: Pools, tell: Tell) -> None:
    """Trace the first `MOST_CASES` of the cases on each of `sides`, case by case; a failure skips the other side."""
    chosen = case_ids[:MOST_CASES]
    left_out = len(case_ids) - len(chosen)
    if not chosen:
        return
    more = f"; {counted(left_out, 'case')} that regressed less {'is' if left_out == 1 else 'are'} not traced"
    tell(f"tracing {counted(len(chosen), 'regressed case')} on both sides{more if left_out else ''}")
    for case_id in chosen:
        for side in sides:
            trace = ask_worker(pools[side.name], side.cases[case_id], side.settings, TASK, TRACING)
            if side.cases[case_id].case.device != "cpu":
                pools[side.name].serve(ask(REST, Nothing()))  # free its context's memory for the other side
            if not isinstance(trace, CastPass):
                why = trace.reason if isinstance(trace, Skip) else trace.said
                tell(f"could not be traced: {case_id} in the {side.name}: {' '.join(why.split())}")
                break
            side.write(trace)


def probe_and_check(
    sides: Sequence[Lane], environment: Environment, devices: Sequence[str], pools: Pools, tell: Tell
) -> None:
    """Probe autocast's rules on `devices`, and run the fast checks for known defects, on each side in turns.

    Timed checks are left out: the session itself measures times better.
    """
    tell(f"probing autocast's rules and known defects on {', '.join(devices)} on both sides, whose torch differs")
    asked = ChecksAsked()
    for device in devices:
        for side in sides:
            blank = RuleProbe(device=device, dtypes=[])
            probe = filled(pools[side.name], rules.STUDY, side.settings, Nothing(), blank)
            if probe.error:
                tell(f"autocast on {device} could not be probed in the {side.name}: {probe.error}")
                break
            side.write(probe)
    for wanted in check.wanted_of(environment, devices, asked):
        for side in () if check.check_of(wanted).timed else sides:
            side.write(filled(pools[side.name], check.STUDY, side.settings, asked, wanted))
