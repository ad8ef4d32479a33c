"""What checks come to: what is defective and matters for what, and what came and went between two runs of them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ampbench.core.units import all_of, counted
from ampbench.defects.catalogue import CHECKS
from ampbench.defects.check import INFERENCE, TRAINING, Check
from ampbench.instruments.check.records import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN, Checked
from ampbench.records.case import Environment
from ampbench.records.casts import CastPass
from ampbench.records.changes import DefectChange
from ampbench.records.labels import few
from ampbench.records.rules import FAKE
from ampbench.store import StoredRun

WORST = (DEFECTIVE, DIFFERS, NOT_SHOWN, GOOD)
"""Outcomes in the order in which they are told."""
NAMED = 8
"""Of defects of a device no more are named in a sentence."""
UNKNOWN = Check(
    name="", area="", title="a check that this ampbench does not have", threads=(), why="", remedy="", matters=()
)
"""Stands for a check of another version."""


def check_of(found: Checked) -> Check:
    """Return the check that a result is of."""
    return CHECKS.get(found.check, UNKNOWN)


def latest(runs: Iterable[StoredRun]) -> dict[tuple[str, str], Checked]:
    """Return the last result of each check on each device, by device and name."""
    return {(one.device, one.check): one for run in runs for one in run.every(Checked)}


def device_said(device: str, found: Sequence[Checked]) -> str:
    """Return what a device is called, with what stood for it: "cpu", "xpu (fake tensors)"."""
    return f"{device} (fake tensors)" if any(one.how == FAKE for one in found) else device


def place_of(version: str, device: str, found: Sequence[Checked]) -> str:
    """Return where checks looked: "torch 2.15.0 on xpu (fake tensors)"."""
    return f"torch {version} on {device_said(device, found)}"


def sentences(place: str, found: Sequence[Checked]) -> list[str]:
    """Return how many of the defects that were looked for are in a place, by what they matter for, and how many traps.

    What differs by design is no defect: it counts as a trap, alone.
    """
    said = []
    for purpose in (TRAINING, INFERENCE):
        sought = [one for one in found if purpose in check_of(one).matters and not check_of(one).by_design]
        shown = [one for one in sought if one.outcome != NOT_SHOWN]
        defective = [one.check for one in shown if one.outcome == DEFECTIVE]
        if shown:
            verb = "is" if 1 in (len(defective), len(shown)) else "are"
            named = f": {few(defective, NAMED)}" if defective else ""
            what = f"{counted(len(shown), 'defect')} that matter{'s' if len(shown) == 1 else ''}"
            said.append(f"{len(defective)} of {what} for {purpose} {verb} in {place}{named}")
    traps = [one.check for one in found if one.outcome == DIFFERS]
    if traps:
        what = f"{counted(len(traps), 'trap')} by design {'is' if len(traps) == 1 else 'are'} in {place}"
        said.append(f"{what}: {few(traps, NAMED)}")
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """That a check comes to something else in a later run than in an earlier one, by one and the same program."""

    before: Checked
    after: Checked

    @property
    def came(self) -> bool:
        """Whether the defect came, where both could show it."""
        return self.after.outcome == DEFECTIVE and self.before.outcome not in (DEFECTIVE, NOT_SHOWN)

    @property
    def went(self) -> bool:
        """Whether the defect went, where both could show it."""
        return self.before.outcome == DEFECTIVE and self.after.outcome not in (DEFECTIVE, NOT_SHOWN)


def changes(before: Iterable[StoredRun], after: Iterable[StoredRun]) -> list[CheckChange]:
    """Return the checks that come to something else in runs `after` than `before`, those that came first.

    A check whose program is another one is none of them; nor are two traps by design that look alike.
    """
    earlier = latest(before)
    pairs = [(earlier[key], one) for key, one in latest(after).items() if key in earlier]
    found = [
        CheckChange(before=was, after=now)
        for was, now in pairs
        if was.program == now.program
        and (was.outcome != now.outcome or (was.seen != now.seen and now.outcome != NOT_SHOWN))
    ]
    return sorted(found, key=lambda one: (not one.came, not one.went))


def came_or_went(before: StoredRun, after: StoredRun) -> list[DefectChange]:
    """Return the defects that only one of two runs found, of those that both looked for; those that came first."""
    return [
        DefectChange(
            check=one.after.check,
            device=one.after.device,
            title=check_of(one.after).title,
            before=one.before.outcome,
            after=one.after.outcome,
            came=one.came,
            remedy=check_of(one.after).remedy,
        )
        for one in changes([before], [after])
        if one.came or one.went
    ]


_UNMOVED = "bf16-weight-update"
"""The check of what befalls a case whose weights in bf16 do not move."""


def pointers(stored: StoredRun) -> list[str]:
    """Return a line for each check that looks for what befell cases of a run: an error, still weights, an op's dtype.

    That is where to look: whether this torch has the defect is what running the check says.
    """
    met: dict[str, dict[str, str]] = {}
    for check, case_id, how in _met(stored):
        case = stored.cases.get(case_id)
        if case is not None and case.device in check.devices:
            met.setdefault(check.name, {}).setdefault(case_id, how)
    version, said = stored.header.environment.torch_version, []
    for check in CHECKS.values():
        if check.name not in met or _is_mended(check, version):
            continue
        hows = met[check.name].values()
        befell = f"{counted(len(hows), 'case')} {' or '.join(dict.fromkeys(hows))}"
        said.append(f"{befell}: `ampbench check {check.name}` looks for that in this torch ({check.title})")
    return said


def _is_mended(check: Check, version: str) -> bool:
    """Return whether a check's defect is known to be none in a version of torch; what is no version tells nothing."""
    from packaging.version import InvalidVersion, Version

    try:
        return bool(check.mended) and Version(version) >= Version(check.mended)
    except InvalidVersion:
        return False


def _met(stored: StoredRun) -> Iterator[tuple[Check, str, str]]:
    """Yield each check that a case trips over, the case's id, and how it does so, as a verb with its object."""
    for failure in stored.failures.values():
        for check in CHECKS.values():
            if check.error and re.search(check.error, failure.message):
                yield check, failure.case_id, "failed with an error that is known"
    for case_id, divergence in stored.divergence.items():
        update = divergence.update
        if update is not None and update.storage == "bf16" and 2 * (update.swallowed or 0) > (update.moving or 0):
            yield CHECKS[_UNMOVED], case_id, "left most bf16 weights where they were"
    about = [check for check in CHECKS.values() if check.ops]
    for case_id, traced in stored.of(CastPass).items():
        for op in traced.trace.ops:
            name = (op.function or "").rpartition(".")[2]
            for check in about:
                if name in check.ops and (not check.dtype or check.dtype in (*op.inputs, *op.outputs)):
                    yield check, case_id, f"called {name}{f' on {check.dtype}' if check.dtype else ''}"


def diagnosis(runs: Iterable[StoredRun], environment: Environment) -> list[str]:
    """Return what runs of checks found in this very torch, on this processor; or that none has looked."""
    own = [run for run in runs if _is_of(environment, run.header.environment)]
    found = latest(own)
    paths = {(one.device, one.check): run.path for run in own for one in run.every(Checked)}
    version = environment.torch_version
    said = []
    for device in dict.fromkeys(device for device, _ in found):
        of_device = [one for (where, _), one in found.items() if where == device]
        said += sentences(place_of(version, device, of_device), of_device)
    if not said:
        return [f"no run here has looked for known defects of torch {version} on this processor: `ampbench check` does"]
    shown = dict.fromkeys(paths[key] for key, one in found.items() if one.outcome in (DEFECTIVE, DIFFERS))
    return said + ([f"what to do about them: {all_of([f'ampbench show {path}' for path in shown])}"] if shown else [])


def _is_of(environment: Environment, other: Environment) -> bool:
    return (environment.torch_version, environment.torch_commit, environment.cpu, environment.cpu_flags) == (
        other.torch_version,
        other.torch_commit,
        other.cpu,
        other.cpu_flags,
    )
