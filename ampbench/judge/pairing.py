"""Which case of one run is compared with which of the other, and in what their environments differ.

What a difference means for times and for exact numbers is said with it. Numbers that another program kept without what
they were made from are paired, too: shown side by side, never judged. The shards of a plan are put together, as one run
of each machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from ampbench.base.metrics import GATED
from ampbench.errors import UsageError
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.case import VISIBLE_DEVICES, Case, DeviceDescription, Environment, kind_of
from ampbench.records.changes import Change, ChangeCode, ChangeStatus, Difference
from ampbench.records.labels import few
from ampbench.records.run import DIRTY, SPREAD, Footer, Header, Shard, short_commit
from ampbench.store import StoredRun, new_run_id

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision", "input_dtype", "scaler"),
    "scaler": ("scaler",),
    "path": ("path",),
    "compile_mode": ("path",),
    "memory_format": ("memory_format",),
    "optimizer": ("recipe",),
    "sdpa": ("sdpa",),
    "batch_size": ("batch_size",),
}
"""What of a case a setting of an arm decides; a precision also decides how inputs are stored and what GradScaler does.

Every other setting is the name of a parameter, or says nothing about cases.
"""
_KEY = (
    "workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format", "sdpa", "scaler",
    "recipe",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A case of the baseline and the one of the candidate that is compared with it, with their ids."""

    baseline: Case
    candidate: Case
    baseline_id: str
    candidate_id: str


@dataclass(frozen=True, slots=True)
class Paired:
    """The pairs, in the order of the baseline, and the ids of the cases that only one side has."""

    pairs: Sequence[Pair]
    only_baseline: Sequence[str]
    only_candidate: Sequence[str]


def arm_settings(*headers: Header) -> dict[str, str]:
    """Return the settings that the arms of the runs were given, by name; of a name given twice, the last value."""
    found: dict[str, str] = {}
    for header in headers:
        if header.arm is not None:
            found |= header.arm.settings
    return found


def pair_cases(baseline: Iterable[Case], candidate: Iterable[Case], settings: Iterable[str]) -> Paired:
    """Return which cases are compared: those with one id or, where arms have `settings`, that differ in those alone.

    Raises `UsageError` where that leaves a choice.
    """
    left_out = list(settings)
    ours, theirs = _by_key("baseline", baseline, left_out), _by_key("candidate", candidate, left_out)
    return Paired(
        [Pair(case, theirs[key][0], id, theirs[key][1]) for key, (case, id) in ours.items() if key in theirs],
        [id for key, (_, id) in ours.items() if key not in theirs],
        [id for key, (_, id) in theirs.items() if key not in ours],
    )


def _by_key(side: str, cases: Iterable[Case], left_out: Sequence[str]) -> dict[Any, tuple[Case, str]]:
    """Return cases and their ids by what is left of them without the settings `left_out`."""
    found: dict[Any, tuple[Case, str]] = {}
    for case in cases:
        case_id = case.case_id
        _, other = found.setdefault(_key(case, left_out) if left_out else case_id, (case, case_id))
        if other != case_id:
            raise UsageError(
                f"the {side} has {other} and {case_id}, which differ only in what an arm sets "
                f"({', '.join(left_out)}), so it is not clear which to compare: select one of them when measuring"
            )
    return found


def _key(case: Case, left_out: Sequence[str]) -> tuple[Any, ...]:
    own = {name.removeprefix(f"{case.workload}.") for name in left_out}
    fields = {field for name in own for field in _FIELDS.get(name, ())}
    parameters = tuple(sorted((name, value) for name, value in case.parameters.items() if name not in own))
    return (*(getattr(case, name) for name in _KEY if name not in fields), parameters)


MISSING = "none"

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that decide the number of torch's threads (torch.set_num_threads' documentation)."""

SWITCHES = "switches of torch"
"""What differs where a run was measured under the user's own (--keep-flags)."""

TIMED = "what an accelerator's rounds are"
"""Bursts, or what goes on for seconds: the former are faster where a clock falls under load."""

POWER_LIMIT = "power limit"
"""What differs where an accelerator may take more power in one run: times, never bits."""

_MACHINE = MappingProxyType({"host": "host", "CPU": "cpu", "number of CPUs": "cpu_count"})
_INSTALLATION = MappingProxyType(
    {
        "torch": "torch_version",
        "torchvision": "torchvision_version",
        "CUDA": "cuda_version",
        "cuDNN": "cudnn_version",
        "XPU runtime": "xpu_version",
        "numpy": "numpy_version",
        "python": "python_version",
        "system": "system",
        "compiler": "compiler",
    }
)
_INEXACT = frozenset(
    {
        "torch",
        "torch build",
        "torchvision",
        "CUDA",
        "cuDNN",
        "XPU runtime",
        "CPU",
        "CPU instructions",
        "compiler",
        "number of threads",
        "ampbench",
    }
)
"""What may change the order in which torch sums, what it allocates, or how ampbench counts both; beside devices and
environment variables."""


_OTHER_COMPUTATION = ("precision", "path", "compile_mode", "memory_format", "sdpa", "scaler", "recipe")
"""Settings of an arm with which the same workload is computed by other kernels.

A workload's parameter is not among them: what it changes is the workload's own doing. One in upper case is an
environment variable, which may do anything.
"""


def not_the_commits(header: Header) -> str:
    """Say which code of a run was not that of the commit it records; "" where all was, or no commit is recorded."""
    elsewhere = dict.fromkeys(package for source in header.sources for package in source.elsewhere)
    if not elsewhere or not header.commit:
        return ""
    return (
        f"not all that is measured is commit {short_commit(header.commit)}: imported from elsewhere "
        f"{'was' if len(elsewhere) == 1 else 'were'} {few(elsewhere)}; install the project anew (pip install -e .), "
        "then measure again"
    )


class EnvironmentDifferences:
    """The differences of two runs' environments; `devices` are the device types that are compared.

    `settings` are those that the arms were given (`pairing.arm_settings`): a number of threads that is
    among them was changed on purpose and does not keep times from being compared. Nor do switches of torch within one
    session, whose arms or whose files set them so.
    """

    def __init__(self, baseline: Header, candidate: Header, devices: Iterable[str], settings: Mapping[str, str]):
        self.found: list[Difference] = []
        self._of_device: dict[str, list[Difference]] = {}
        self._inexact = not _same_code(baseline, candidate)
        before, after = baseline.environment, candidate.environment
        for name, field in _MACHINE.items():
            self._compare(name, getattr(before, field), getattr(after, field), matters=True)
        for device in dict.fromkeys(devices):
            self._compare_device(device, before, after)
        on_purpose = bool(settings.keys() & {"threads", *THREAD_VARIABLES})
        self._compare("number of threads", before.threads, after.threads, matters=not on_purpose)
        switches = _kept_switches(baseline), _kept_switches(candidate)
        if self._compare(SWITCHES, *switches, matters=not one_session(baseline, candidate)):
            self._inexact = True
        if self._of_device.keys() - {"cpu"}:
            timed = ["a burst" if one.settings.burst else "what goes on" for one in (baseline, candidate)]
            self._compare(TIMED, timed[0], timed[1], matters=True)
        for name, field in _INSTALLATION.items():
            self._compare(name, getattr(before, field), getattr(after, field))
        self._compare("CPU instructions", " ".join(before.cpu_flags), " ".join(after.cpu_flags))
        if before.torch_version == after.torch_version:
            self._compare("torch build", before.torch_commit, after.torch_commit)
        self._compare("ampbench", _ampbench(baseline), _ampbench(candidate))
        self._compare("commit", baseline.commit, candidate.commit)
        for name in dict.fromkeys(source.name for source in baseline.sources):
            if file := other_file(name, baseline, candidate):
                self._compare(f"file of {name}", *file)
        named_of = {source.family for header in (baseline, candidate) for source in header.sources}
        ours, theirs = (
            {name: one.packages[name] for name in named_of & one.packages.keys()} for one in (before, after)
        )
        if self._compare_each(ours, theirs) + self._compare_each(before.variables, after.variables):
            self._inexact = True
        ours, theirs = (header.arm.settings if header.arm else {} for header in (baseline, candidate))
        for name in self._compare_each(ours, theirs, "setting "):
            self._inexact = self._inexact or name.isupper() or name in _OTHER_COMPUTATION

    def obstacles(self, device: str) -> list[Difference]:
        """Return the differences for which times of `device` cannot be compared."""
        here = self._of_device.get(device, [])
        every = [one for known in self._of_device.values() for one in known]
        concern = [one for one in self.found if one.matters and not (device == "cpu" and one.name == TIMED)]
        return [one for one in concern if one in here or one not in every]

    def same(self, device: str) -> bool:
        """Return whether numbers of `device` that luck has no part in must be the same to the last bit.

        They must where the same code ran on the same environment.
        """
        here = [one for one in self._of_device.get(device, []) if one.name != f"{device} {POWER_LIMIT}"]
        return not (self._inexact or here)

    def _compare_device(self, type: str, before: Environment, after: Environment) -> None:
        first = len(self.found)
        ours, theirs = before.device(type), after.device(type)
        if type != "cpu":  # its name is the CPU's
            self._compare(f"{type} device", _name(ours), _name(theirs), matters=True)
        if ours is not None and theirs is not None:
            self._compare(f"{type} driver", ours.driver, theirs.driver)
            self._compare_each(ours.details, theirs.details, f"{type} ")
            before_limit, after_limit = (one.state.power_limit_watts if one.state else None for one in (ours, theirs))
            if before_limit is not None and after_limit is not None:
                limits = f"{before_limit:.0f} W", f"{after_limit:.0f} W"
                self._compare(f"{type} {POWER_LIMIT}", *limits, matters=True)
        self._of_device[type] = self.found[first:]

    def _compare_each(self, before: Mapping[str, str], after: Mapping[str, str], prefix: str = "") -> list[str]:
        """Keep and tell the differences of two tables; return their names, which are told behind `prefix`."""
        names = sorted(before.keys() | after.keys())
        return [name for name in names if self._compare(f"{prefix}{name}", before.get(name), after.get(name))]

    def _compare(self, name: str, before: object, after: object, matters: bool = False) -> bool:
        """Keep and tell a difference."""
        if before == after:
            return False
        self.found.append(Difference(name=name, baseline=_text(before), candidate=_text(after), matters=matters))
        self._inexact = self._inexact or name in _INEXACT
        return True


def other_file(workload: str, baseline: Header, candidate: Header) -> tuple[str, str] | None:
    """Return the two files that a workload of one name came from, from where their paths part; None for one file.

    Commits of one session are checked out into folders of their own, and another machine has other folders: nothing
    follows from these.
    """
    if baseline.environment.host != candidate.environment.host or None not in (baseline.arm, candidate.arm):
        return None
    paths = [
        next((one.module for one in header.sources if one.name == workload), "") for header in (baseline, candidate)
    ]
    if paths[0] == paths[1] or not all(path.endswith(".py") for path in paths):
        return None
    parts = [PurePath(path).parts for path in paths]
    shared = next((place for place, both in enumerate(zip(*parts, strict=False)) if both[0] != both[1]), 0)
    return str(PurePath(*parts[0][shared:])), str(PurePath(*parts[1][shared:]))


def _kept_switches(header: Header) -> str:
    """Return under which switches of the user's own a run was measured."""
    if not header.settings.keep_flags:
        return "as torch ships them"
    own = dict.fromkeys(one for source in header.sources for one in source.switches)
    return f"the user's own ({', '.join(own) or 'none is set'})"


def one_session(baseline: Header, candidate: Header) -> bool:
    """Return whether both sides are arms of one A/B session."""
    ours, theirs = baseline.arm, candidate.arm
    return ours is not None and theirs is not None and ours.session == theirs.session


def _same_code(baseline: Header, candidate: Header) -> bool:
    """Return whether both sides are known to have run the same code.

    Files with uncommitted changes are known to be the same within one session only. Outside a repository there is no
    commit: then a release of ampbench says what its own workloads are, and nothing says what a user's file was.
    """
    ours, theirs = baseline.arm, candidate.arm
    if ours is not None and theirs is not None and one_session(baseline, candidate):
        refs = [[text for text in arm.given if text.startswith("git:")] for arm in (ours, theirs)]
        if refs[0] == refs[1]:
            return True
    sources = [*baseline.sources, *candidate.sources]
    if any(source.elsewhere for source in sources) or baseline.commit != candidate.commit:
        return False
    if baseline.commit is None:
        return all(source.builtin for source in sources)
    return not baseline.commit.endswith(DIRTY)


def _name(device: DeviceDescription | None) -> str | None:
    return device.name if device is not None and device.available else None


def _ampbench(header: Header) -> str:
    return header.environment.ampbench_version or header.ampbench_version


def _text(value: object) -> str:
    return MISSING if value in (None, "") else str(value)


Values = tuple[float | None, float | None]

_UNGATED: Mapping[str, str] = {"items_per_second": "time", "output_floor_ratio": "accuracy"}
"""What other programs keep of metrics that comparisons never judge, and of which kind that is."""


def imported_finding(
    pair: Pair, metric: str, values: Values, baseline: MeasuredRun, candidate: MeasuredRun
) -> Change | None:
    """Return the finding on a metric of which a side has a reading alone; None where neither side has.

    `values` are what the sides have raw entries for, None where they have none. It is incomparable: a reading has no
    rounds, no counter and no digests to decide with.
    """
    if not (baseline.stored.readings or candidate.stored.readings):  # nearly all, asked for each metric of each case
        return None
    ids = (pair.baseline_id, pair.candidate_id)
    runs = (baseline, candidate)
    readings = [
        run.reading(metric, case_id) if value is None else None
        for run, case_id, value in zip(runs, ids, values, strict=True)
    ]
    if readings == [None, None]:
        return None
    kind = GATED[metric].kind if metric in GATED else _UNGATED[metric]
    return Change(
        case=pair.baseline,
        metric=metric,
        kind=kind,
        status=ChangeStatus.INCOMPARABLE,
        code=ChangeCode.IMPORTED,
        reason=_reason(kind, readings, baseline, candidate),
        baseline=values[0] if readings[0] is None else readings[0],
        candidate=values[1] if readings[1] is None else readings[1],
    )


def _reason(kind: str, readings: list[float | None], baseline: MeasuredRun, candidate: MeasuredRun) -> str:
    sides = {"baseline": baseline, "candidate": candidate}
    named = [side for side, reading in zip(sides, readings, strict=True) if reading is not None]
    programs = list(dict.fromkeys(sides[side].program for side in named))
    lost = "its samples were not kept" if kind == "time" else "what the number was made from was not kept"
    if len(named) == 1:
        return f"the {named[0]} was imported from {programs[0]}: {lost}; measure with ampbench ab"
    if len(programs) == 1:
        return f"imported from {programs[0]}: {lost}; compare with {programs[0]} compare, or measure with ampbench ab"
    return f"imported from {' and '.join(programs)}: {lost}; measure with ampbench ab"


def merged(shards: Sequence[StoredRun], command: list[str]) -> list[StoredRun]:
    """Return a run of the whole plan for each machine that `shards` were measured on; `command` is what asked for it.

    Machines of one kind, which differ in nothing but their names, are one. Raises `UsageError` for what is no shard or
    broke off, for shards of another plan, environment, code or networks than the others, and where some are missing or
    there twice.
    """
    machines: list[list[StoredRun]] = []
    for one in shards:
        _check(one)
        fitting = (members for members in machines if not _difference(members[0].header, one.header))
        members = next(fitting, None)
        if members is None:
            machines.append([one])
        else:
            members.append(one)
    found = [_whole(sorted(members, key=_number), machines) for members in machines]
    return [_together(members, command) for members in found]


def lanes_together(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return runs, those of lanes of one kind that shared the cases of a fleet as one, where the first of them was.

    A case that a lane had begun before it was lost has its turns from two of them. Cases are in the order of their
    workloads, as the lanes were given them.
    """
    together: dict[tuple[str, ...], list[StoredRun]] = {}
    for place, run in enumerate(runs):
        fleet = run.header.fleet
        shared = fleet is not None and fleet.on == SPREAD
        key = (fleet.id, kind_of(run.header.environment)) if fleet is not None and shared else (str(place),)
        together.setdefault(key, []).append(run)
    return [members[0] if len(members) == 1 else _united(members) for members in together.values()]


def _united(lanes: Sequence[StoredRun]) -> StoredRun:
    """Return what several lanes measured as one run, of all their names."""
    first, names = lanes[0], [run.header.fleet.lane for run in lanes if run.header.fleet is not None]
    name = " + ".join(names) if len(names) <= 3 else f"{names[0]} + {len(names) - 1:,} others"
    order = {source.name: place for place, source in enumerate(first.header.sources)}
    by_case: dict[str, Any] = {
        name: {case_id: entry for run in lanes for case_id, entry in getattr(run, name).items()}
        for name in ("cases", "memory", "divergence", "failures", "skips")
    }
    cases = sorted(by_case["cases"].values(), key=lambda case: order.get(case.workload, len(order)))
    rounds = [each for run in lanes for each in run.rounds]
    done = {each.case_id for each in rounds}
    by_case["cases"] = {case.case_id: case for case in cases}
    by_case["failures"] = {
        case_id: failure for case_id, failure in by_case["failures"].items() if failure.final or case_id not in done
    }
    assert first.header.fleet is not None
    return replace(
        first,
        header=replace(first.header, fleet=replace(first.header.fleet, lane=name)),
        rounds=rounds,
        footers=[footer for run in lanes for footer in run.footers],
        cut=any(run.cut for run in lanes),
        **by_case,
    )


def _check(stored: StoredRun) -> None:
    """Raise `UsageError` for a run that is no shard, or not all that it should be."""
    header = stored.header
    if header.shard is None:
        raise UsageError(f"run {header.run} is no shard: ampbench run --shard I/N measures one")
    if stored.cut or stored.ended != "complete":
        raise UsageError(f"{_named(stored)} broke off: ampbench run --resume {stored.path} measures what is missing")
    if stored.lost:
        raise UsageError(f"{_named(stored)} {stored.lost}: measure it anew")


def _whole(members: list[StoredRun], machines: Sequence[Sequence[StoredRun]]) -> list[StoredRun]:
    """Return the shards of one machine, in order; `UsageError` unless each case of the plan is in one of them.

    `machines` are all that there are: what fits in number differs in something.
    """
    first, shards = members[0], [_shard(one) for one in members]
    count, cases = shards[0].count, shards[0].cases
    by_number: dict[int, StoredRun] = {}
    for one in members:
        other = by_number.setdefault(_number(one), one)
        if other is not one:
            raise UsageError(f"runs {other.header.run} and {one.header.run} are both {_part(one)}: give one of them")
    places = [place for shard in shards for place in shard.places]
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if len(places) < cases and missing:
        others = (one for others in machines for one in others if _number(one) in missing)
        misfit = next(others, None)
        if misfit is not None:
            why = _difference(first.header, misfit.header)
            raise UsageError(f"{_named(misfit)} does not belong to {_named(first)}: {why}")
        numbers = few([str(number) for number in missing])
        raise UsageError(f"{_named(first)} lacks the others: give {numbers} of {count}, too")
    if sorted(places) != list(range(cases)):
        raise UsageError(
            f"{_named(first)} and the others were not shared out alike: runs were added to their results folder "
            "meanwhile, by whose times shards are balanced; measure them anew with another --results folder"
        )
    _check_networks(members)
    return members


def _check_networks(members: Sequence[StoredRun]) -> None:
    """Raise `UsageError` where two shards measured a network with other weights or inputs."""
    seen: dict[tuple[str, str], tuple[StoredRun, str]] = {}
    for one in members:
        for case_id, found in one.divergence.items():
            case = one.cases[case_id]
            for what, digest in (("weights", found.weights_digest), ("inputs", found.inputs_digest)):
                other, known = seen.setdefault((case.network, what), (one, digest))
                if known != digest:
                    raise UsageError(
                        f"the {what} of {case.network} are others in {_named(one)} than in {_named(other)}: "
                        "its code or its random numbers differ; measure both anew"
                    )


def _difference(ours: Header, theirs: Header) -> str:
    """Return in what two shards differ that were measured for one run; "": in nothing but the machine's name."""
    one, other = _plan(ours), _plan(theirs)
    for name, value in one.items():
        if value != other[name]:
            return f"they differ in the {name}"
    devices = {device.type: None for device in ours.environment.devices if device.available}
    found = EnvironmentDifferences(ours, theirs, devices=devices, settings={}).found
    apart = {"host", *VISIBLE_DEVICES}
    told = [f"{each.name} {each.baseline}, there {each.candidate}" for each in found if each.name not in apart]
    return few(told, 3)


def _plan(header: Header) -> dict[str, object]:
    """Return what shards of one run have in common by what was typed, by its name in a sentence."""
    shard, settings = header.shard, header.settings
    assert shard is not None
    own = replace(settings, memory_limit_bytes=None, max_seconds=None)  # of the machine, and of the day
    return {
        "number of shards": shard.count,
        "cases of the plan": (shard.plan, shard.cases),
        "selection": header.selection,
        "settings": own,
        "own precisions": header.precisions,
    }


def _together(members: Sequence[StoredRun], command: list[str]) -> StoredRun:
    """Return the run that the shards of one machine are."""
    first = members[0]
    hosts = list(dict.fromkeys(one.header.environment.host for one in members))
    host = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    labels = list(dict.fromkeys(one.header.label for one in members))
    run = new_run_id(host, datetime.now(UTC))
    order = {place: case for one in members for place, case in zip(_shard(one).places, one.cases, strict=True)}
    cases = {case_id: case for one in members for case_id, case in one.cases.items()}
    header = replace(
        first.header,
        run=run,
        started_at=min(one.header.started_at for one in members),
        label=labels[0] if len(labels) == 1 else "",
        command=command,
        sources=list(dict.fromkeys(source for one in members for source in one.header.sources)),
        environment=replace(first.header.environment, host=host),
        follows=None,
        shard=None,
        merged=[one.header.run for one in members],
    )
    rounds, server = [], 0
    for one in members:
        rounds += [replace(each, server=server + each.server) for each in one.rounds]
        server += 1 + max((each.server for each in one.rounds), default=-1)
    finished = max(footer.finished_at for one in members for footer in one.footers)
    by_case: dict[str, Any] = {
        name: {case_id: entry for one in members for case_id, entry in getattr(one, name).items()}
        for name in ("memory", "divergence", "failures", "skips")
    }
    return StoredRun(
        path=first.path,
        header=header,
        cases={order[place]: cases[order[place]] for place in sorted(order)},
        rounds=rounds,
        found=first.found,
        footers=[Footer(ended="complete", finished_at=finished)],
        **by_case,
    )


def _shard(stored: StoredRun) -> Shard:
    assert stored.header.shard is not None
    return stored.header.shard


def _number(stored: StoredRun) -> int:
    return _shard(stored).number


def _part(stored: StoredRun) -> str:
    return f"shard {_number(stored)} of {_shard(stored).count}"


def _named(stored: StoredRun) -> str:
    return f"{_part(stored)} (run {stored.header.run})"
