"""Checks: which known defects of mixed precision this torch has on this device, each seen by a small program.

Each program is run by a worker of its own, which may crash.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import structs

from ampbench.core import by_key
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import all_of
from ampbench.core.units import one_of as choice
from ampbench.defects import AREAS, CHECKS, INFERENCE, TRAINING, Check, program_of
from ampbench.errors import NothingToRunError
from ampbench.records import Seconds, one_of
from ampbench.records.case import DEVICES, Environment
from ampbench.records.casts import CastPass
from ampbench.records.changes import DefectChange
from ampbench.records.kinds import CHECK
from ampbench.records.measured import KILLED
from ampbench.records.rules import DEVICE, FAKE, NOT_OBSERVED
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import ANY_DEVICE, OnDevices, Study, Table, Torch, asks, here_first, info, torches

if TYPE_CHECKING:
    from ampbench.store import StoredRun

GOOD, DEFECTIVE, DIFFERS, NOT_SHOWN = OUTCOMES = "good", "defective", "differs", "not shown here"
"""Outcomes of a check: correct; defective; as designed, but a trap; not decidable here."""
WORST = (DEFECTIVE, DIFFERS, NOT_SHOWN, GOOD)
"""Outcomes in the order of the report."""
PRELOADED = ("torch._dynamo", "torch.distributed.fsdp")
"""Slow imports of many programs; each program starts as a fork of a process that has done them."""
UNKNOWN = Check(
    name="", area="", title="a check that this ampbench does not have", threads=(), why="", remedy="", matters=()
)
"""Stands for a check of another version."""


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The outcome of the check named `check` on a device type: one of `OUTCOMES`.

    `how` is on the device, by fake tensors in its place, or not at all. `expected` and `seen` are the program's texts,
    `said` its further output, `warned` its warnings. `why` is the reason where nothing could be shown, `cause` the
    failure's (`CAUSES`) where the worker broke. `program` is a digest of its code, without which a change of outcome
    does not show a change of torch. It took `seconds`.
    """

    device: str
    check: str
    outcome: Annotated[str, one_of(*OUTCOMES)]
    how: Annotated[str, one_of(DEVICE, FAKE, NOT_OBSERVED)]
    program: str
    expected: str = ""
    seen: str = ""
    said: list[str] = []
    warned: list[str] = []
    why: str = ""
    cause: str = ""
    seconds: Seconds | None = None


class CheckAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To run the program of the check called `check`, whose `text` this is."""

    check: str
    text: str


class ChecksAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To run the checks with these names or in these areas (none: all but the slow ones)."""

    names: Annotated[
        list[str],
        asks(
            f"Checks (ampbench list checks), or all of {choice(AREAS)}. Default: all fast ones.",
            names=True, argument=True, metavar="[NAME...]", kind="check", among=(*CHECKS, *AREAS),
        ),
    ] = []  # fmt: skip


class CheckCode(StrEnum):
    """Results of checks on a device, and checks that cases of a run point to."""

    DEFECTS = "check-defects"
    UNASKED = "check-unasked"
    SHOWN = "check-shown"
    ERROR = "check-error"
    UNMOVED = "check-unmoved"
    CALLED = "check-called"


def digest_of(text: str) -> str:
    """Return the identity of a program: a digest of its code, without the docstring at its start."""
    return sha256(text.split('"""', 2)[-1].encode()).hexdigest()[:16]


def check_of(result: Checked) -> Check:
    """Return the check that a result is of."""
    return CHECKS.get(result.check, UNKNOWN)


def latest(runs: "Iterable[StoredRun]") -> dict[tuple[str, str], Checked]:
    """Return the last result of each check on each device, by device and name."""
    return {(result.device, result.check): result for run in runs for result in run.every(Checked)}


def conclusions(_: None, torch: Torch[Checked]) -> Iterator[Statement]:
    """Yield the number of defects on each device, by phase, and of traps, which are by design."""
    for device, results in by_key(torch.results, attrgetter("device")).items():
        fake = any(result.how == FAKE for result in results)
        sought = [result for result in results if result.outcome != NOT_SHOWN and not check_of(result).by_design]
        defects = [check_of(result) for result in sought if result.outcome == DEFECTIVE]
        matters = {purpose: sum(purpose in check.matters for check in defects) for purpose in (TRAINING, INFERENCE)}
        traps = sum(result.outcome == DIFFERS for result in results)
        if sought or traps:
            yield state(
                CheckCode.DEFECTS, f"{device} ({FAKE})" if fake else device,
                Severity.PROBLEM if defects else Severity.INFO,
                number=len(defects), shown=len(sought), traps=traps or None, **matters,
            )  # fmt: skip


def _held(name: str, row: Checked) -> Any:
    """Return a field of a result or, where it has none of this name, of its check, as a cell has it."""
    held = getattr(row if hasattr(row, name) else check_of(row), name)
    return "; ".join(held) if isinstance(held, list) else ", ".join(held) if isinstance(held, tuple) else held


_SHOWN = (
    "check device area outcome title expected seen remedy mended matters why how threads said warned seconds program"
)
COLUMNS: Sequence[Column[Checked]] = [Column(name, partial(_held, name)) for name in _SHOWN.split()]
"""A check on a device: outcome, expected and seen values, remedy."""
Alike = Sequence[Checked]
"""Results of a check that came to the same on several devices, for the same reason."""
GROUPED: Sequence[Column[Alike]] = (
    Column("check", lambda rows: rows[0].check, "check", whole=True),
    Column("devices", lambda rows: ", ".join(row.device for row in rows), "on"),
    Column("title", lambda rows: check_of(rows[0]).title, "what is wrong"),
    Column("why", lambda rows: rows[0].why, "why"),
    Column("expected", lambda rows: rows[0].expected, "expected"),
)
Fact = tuple[str, str, str]
FACTS: Sequence[Column[Fact]] = (
    Column("", lambda row: row[0], "check"),
    Column("", lambda row: row[1], "item", whole=True),
    Column("", lambda row: row[2], "details"),
)


def alike(torch: Torch[Checked], outcome: str) -> list[Alike]:
    """Return the results with an outcome; those of one check for one reason are together."""
    results = [result for result in torch.results if result.outcome == outcome]
    return list(by_key(results, attrgetter("check", "why")).values())


def facts(torch: Torch[Checked]) -> Iterator[Fact]:
    """Yield all facts of each check on a device, the worst outcomes first."""
    for result in sorted(torch.results, key=lambda result: WORST.index(result.outcome)):
        check, name = check_of(result), f"{result.check} ({result.outcome}) on {result.device}"
        known = {
            "expected": result.expected,
            "seen": result.seen,
            "not shown": result.why,
            "also printed": "; ".join(result.said),
            "warned": "; ".join(result.warned),
            "why": check.why,
            "what to do": check.remedy,
            "mended in": check.mended and f"torch {check.mended}",
            "threads": ", ".join(check.threads),
        }
        for title, text in known.items():
            if text:
                yield name, title, text
                name = ""


def came_or_went(before: "StoredRun", after: "StoredRun") -> list[DefectChange]:
    """Return the defects that only one of two runs found by the same program, new ones first."""
    earlier, later = latest([before]), latest([after])
    pairs = [(earlier[key], result) for key, result in later.items() if key in earlier]
    changes = [
        DefectChange(
            check=now.check,
            device=now.device,
            title=check_of(now).title,
            before=was.outcome,
            after=now.outcome,
            came=now.outcome == DEFECTIVE,
            remedy=check_of(now).remedy,
        )
        for was, now in pairs
        if was.program == now.program
        and NOT_SHOWN not in (was.outcome, now.outcome)
        and (was.outcome == DEFECTIVE) != (now.outcome == DEFECTIVE)
    ]
    return sorted(changes, key=lambda change: not change.came)


def pointers(stored: "StoredRun") -> Iterator[Statement]:
    """Yield the checks that may explain cases of a run: an error, still weights, an op's dtype."""
    met: dict[tuple[str, CheckCode, str], set[str]] = {}
    for check, case_id, code, op in _met(stored):
        case = stored.cases.get(case_id)
        if case is not None and case.device in check.devices:
            met.setdefault((check.name, code, op), set()).add(case_id)
    version, order = stored.header.environment.torch_version, list(CHECKS)
    for (name, code, op), cases in sorted(met.items(), key=lambda row: order.index(row[0][0])):
        if not _is_mended(CHECKS[name], version):
            yield state(code, cases=len(cases), check=name, title=CHECKS[name].title, op=op or None)


def _is_mended(check: Check, version: str) -> bool:
    """Return whether a version of torch is known to have repaired a check's defect."""
    from packaging.version import Version

    return bool(check.mended) and Version(version) >= Version(check.mended)


def _met(stored: "StoredRun") -> Iterator[tuple[Check, str, CheckCode, str]]:
    """Yield each check that a case trips over, the case's id, how it does so, and by which op."""
    for failure in stored.failures.values():
        for check in CHECKS.values():
            if check.error and re.search(check.error, failure.message):
                yield check, failure.case_id, CheckCode.ERROR, ""
    for case_id, divergence in stored.divergence.items():
        update = divergence.update
        if update is not None and update.storage == "bf16" and 2 * (update.swallowed or 0) > (update.moving or 0):
            yield CHECKS["bf16-weight-update"], case_id, CheckCode.UNMOVED, ""
    about = [check for check in CHECKS.values() if check.ops]
    for case_id, traced in stored.of(CastPass).items():
        for op in traced.trace.ops:
            name = (op.function or "").rpartition(".")[2]
            for check in about:
                if name in check.ops and (not check.dtype or check.dtype in (*op.inputs, *op.outputs)):
                    yield check, case_id, CheckCode.CALLED, f"{name}{f' on {check.dtype}' if check.dtype else ''}"


_SAME = ("torch_version", "torch_commit", "cpu", "cpu_flags")


def diagnosis(runs: "Iterable[StoredRun]", environment: Environment) -> Iterator[Statement]:
    """Yield the findings of checks in this torch on this processor, or that no check ran."""
    alike = [run for run in runs if all(getattr(run.header.environment, n) == getattr(environment, n) for n in _SAME)]
    version, results = environment.torch_version, latest(alike)
    if not results:
        yield info(CheckCode.UNASKED, version=version)
        return
    yield from conclusions(None, Torch(version, here_first(results.values())))
    paths = {(result.device, result.check): run.path for run in alike for result in run.every(Checked)}
    evidence = dict.fromkeys(paths[key] for key, result in results.items() if result.outcome in (DEFECTIVE, DIFFERS))
    if evidence:
        yield info(CheckCode.SHOWN, commands=all_of([f"ampbench show {path}" for path in evidence]))


def wanted_of(environment: Environment, devices: Sequence[str], asked: ChecksAsked) -> list[Checked]:
    """Return the requested checks, device by device, without `devices` on all types of them.

    On an absent device these are the checks that fake tensors answer, and named ones, with the reason not to run them.
    Raises `NothingToRunError` where there are none.
    """
    checks = [
        check
        for check in CHECKS.values()
        if {check.name, check.area} & {*asked.names} or not (check.slow or asked.names)
    ]
    wanted = []
    for device in dict.fromkeys(devices or DEVICES):
        present_device = environment.device(device)
        present = present_device is not None and present_device.available
        for check in checks:
            if device not in check.devices or not (present or check.fake or (devices and check.name in asked.names)):
                continue
            why = "" if present or check.fake else f"needs a real {device}, and there is none"
            if not why and check.compiler and environment.compiler is None:
                why = "needs a C++ compiler, and there is none on the PATH (CXX names another)"
            program = digest_of(program_of(check, device))
            named = {"device": device, "check": check.name, "program": program}
            wanted.append(Checked(**named, outcome=NOT_SHOWN, how=NOT_OBSERVED, why=why))  # type: ignore[arg-type]
    if not wanted:
        raise NothingToRunError(f"none of these checks is for {', '.join(devices or DEVICES)}")
    return wanted


TASK = Task(CHECK, CheckAsked, Checked, "ampbench.studies.devices_measure:do_check")
STUDY: Study[ChecksAsked, Torch[Checked]] = Study(
    kind=CHECK,
    help="""\
Look for known defects of mixed precision in the installed torch: in its autocast, scaler, kernels, compiler.

Each check is a small program from a public report, run by a process of its own. What a device that is not here would
do is asked of fake tensors where these answer truly. Stored like any run.

\b
Examples:
  ampbench check
  ampbench check compile scaler
  ampbench check stale-weight-cast --device cpu
  ampbench list checks stale-weight-cast    its program, to paste
""",
    doing="checking",
    timeout="60",
    asked=ChecksAsked,
    task=TASK,
    on_devices=OnDevices(
        request=lambda _, wanted: (
            None if wanted.why else CheckAsked(check=wanted.check, text=program_of(check_of(wanted), wanted.device))
        ),
        unanswered=lambda blank, failure: structs.replace(blank, why=failure.said, cause=failure.cause),
        preload=PRELOADED,
        help=ANY_DEVICE,
    ),
    parts=lambda where, _, asked: wanted_of(where.environment, where.selection.devices, asked),
    apart=("check", "device"),
    failed=lambda checked: checked.cause == KILLED,  # a crash is a result
    title="Known defects",
    key="checks",
    subject="torch",
    subjects=lambda runs, _: torches(runs, lambda run: latest([run])),
    tables=(
        Table("outcomes", COLUMNS, lambda torch: torch.results),
        *(
            Table(
                "",
                GROUPED,
                partial(alike, outcome=outcome),
                title,
                keys=f"check devices {key}",
                folded=folded,
            )
            for outcome, title, key, folded in (
                (DEFECTIVE, "Defects", "title", False),
                (DIFFERS, "By design, but not what one may expect", "title", True),
                (NOT_SHOWN, "Not shown here", "why", False),
                (GOOD, "As it should be", "expected", True),
            )
        ),
        Table("", FACTS, lambda torch: list(facts(torch)), "Each check in full", folded=True),
    ),
    conclusions=conclusions,
)
