"""Pair the cases of two runs, and list the differences of their environments.

Each difference records whether times, or exact numbers, can still be compared. Imported numbers without raw samples are
paired too: shown side by side, never judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ampbench.core.metrics import GATED
from ampbench.errors import UsageError
from ampbench.judge.rounds import Pair
from ampbench.records.case import Case, Environment
from ampbench.records.changes import Change, ChangeCode, ChangeStatus, Difference
from ampbench.records.run import DIRTY, Header

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision", "input_dtype", "scaler"),
    "scaler": ("scaler",),
    "path": ("path",),
    "memory_format": ("memory_format",),
    "optimizer": ("recipe",),
    "sdpa": ("sdpa",),
    "batch_size": ("batch_size",),
}
"""The fields of a case that an arm's setting decides; a precision also decides input storage and GradScaler.

Every other setting is the name of a parameter, or unrelated to cases.
"""
_KEY = (
    "workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format", "sdpa", "scaler",
    "recipe",
)  # fmt: skip


def arm_settings(*headers: Header) -> dict[str, str]:
    """Return the settings of the runs' arms by name; the last value of a name wins."""
    settings: dict[str, str] = {}
    for header in headers:
        if header.arm is not None:
            settings |= header.arm.settings
    return settings


def pair_cases(baseline: Iterable[Case], candidate: Iterable[Case], settings: Iterable[str]) -> list[tuple[Case, Case]]:
    """Return the pairs of cases with equal ids or, with `settings` of arms, that differ in these settings alone.

    They are in the order of the baseline. Raises `UsageError` if a case has several partners.
    """
    left_out = list(settings)
    ours, theirs = _by_key("baseline", baseline, left_out), _by_key("candidate", candidate, left_out)
    return [(case, theirs[key]) for key, case in ours.items() if key in theirs]


def _by_key(side: str, cases: Iterable[Case], left_out: Sequence[str]) -> dict[Any, Case]:
    """Return cases keyed by their fields without the settings `left_out`."""
    cases_by_key: dict[Any, Case] = {}
    for case in cases:
        first = cases_by_key.setdefault(_key(case, left_out) if left_out else case.case_id, case)
        if first.case_id != case.case_id:
            raise UsageError(
                f"the {side} has {first.case_id} and {case.case_id}, which differ only in what an arm sets "
                f"({', '.join(left_out)}), so it is not clear which to compare: select one of them when measuring"
            )
    return cases_by_key


def _key(case: Case, left_out: Sequence[str]) -> tuple[Any, ...]:
    names = {name.removeprefix(f"{case.workload}.") for name in left_out}
    fields = {field for name in names for field in _FIELDS.get(name, ())}
    parameters = tuple(sorted((name, value) for name, value in case.parameters.items() if name not in names))
    return (*(getattr(case, name) for name in _KEY if name not in fields), parameters)


MISSING = "none"

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of torch's threads (see torch.set_num_threads)."""

ISOLATION = ("all in one process", "a process each")
"""How cases are isolated: other cases in the same process affect times."""

UUID = "uuid"
"""The detail that identifies an accelerator among cards of the same model."""

POWER_LIMIT = "power limit"
"""The difference between runs whose accelerators had other power limits: it affects times, never results."""

_MACHINE = {"host": "host", "CPU": "cpu", "number of CPUs": "cpu_count"}
_INSTALLATION = {
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
_INEXACT = {
    "torch", "torch build", "torchvision", "CUDA", "cuDNN", "XPU runtime", "CPU", "CPU instructions", "compiler",
    "number of threads", "ampbench", "switches of torch",
}  # fmt: skip
"""Differences, besides devices and environment variables, that may change the order of torch's sums, its allocations,
or how ampbench counts them."""
_OTHER_COMPUTATION = ("precision", "path", "compile_mode", "memory_format", "sdpa", "scaler", "recipe")
"""Settings of an arm that run the same workload in other kernels.

Parameters of workloads are not listed: they change the workload itself. Upper-case settings are environment variables,
which may change anything.
"""


class EnvironmentDifferences:
    """The differences of two runs' environments; `devices` are the device types that are compared.

    `settings` are the arms' settings (`arm_settings`): times stay comparable across a number of threads set there,
    which was changed on purpose.
    """

    def __init__(self, baseline: Header, candidate: Header, devices: Iterable[str], settings: Mapping[str, str]):
        self.found: list[Difference] = []
        self._of: list[str] = []  # their device types, "" for others
        self._inexact = not _same_code(baseline, candidate)
        before, after = baseline.environment, candidate.environment
        for name, field in _MACHINE.items():
            self._compare(name, getattr(before, field), getattr(after, field), matters=True)
        self._of += [""] * len(self.found)
        for device in dict.fromkeys(devices):
            self._compare_device(device, before, after)
        on_purpose = bool(settings.keys() & {"threads", *THREAD_VARIABLES})
        self._compare("number of threads", before.threads, after.threads, matters=not on_purpose)
        apart = [ISOLATION[header.settings.isolation] for header in (baseline, candidate)]
        self._compare("isolation", apart[0], apart[1], matters=True)
        for name, field in _INSTALLATION.items():
            self._compare(name, getattr(before, field), getattr(after, field))
        self._compare("CPU instructions", " ".join(before.cpu_flags), " ".join(after.cpu_flags))
        if before.torch_version == after.torch_version:
            self._compare("torch build", before.torch_commit, after.torch_commit)
        versions = [header.environment.ampbench_version or header.ampbench_version for header in (baseline, candidate)]
        self._compare("ampbench", versions[0], versions[1])
        self._compare("commit", baseline.commit, candidate.commit)
        for name in dict.fromkeys(source.name for source in baseline.sources):
            if file := other_file(name, baseline, candidate):
                self._compare(f"file of {name}", *file)
        named_of = {source.family for header in (baseline, candidate) for source in header.sources}
        ours, theirs = (
            {name: environment.packages[name] for name in named_of & environment.packages.keys()}
            for environment in (before, after)
        )
        if self._compare_each(ours, theirs) + self._compare_each(before.variables, after.variables):
            self._inexact = True
        ours, theirs = (header.arm.settings if header.arm else {} for header in (baseline, candidate))
        for name in self._compare_each(ours, theirs, "setting "):
            self._inexact = self._inexact or name.isupper() or name in _OTHER_COMPUTATION
        self._of += [""] * (len(self.found) - len(self._of))

    def obstacles(self, device: str) -> list[Difference]:
        """Return the differences that make times of `device` incomparable."""
        known = zip(self.found, self._of, strict=True)
        return [difference for difference, of in known if difference.matters and of in ("", device)]

    def same(self, device: str) -> bool:
        """Return whether exact numbers of `device` must be equal to the last bit: same code, same environment."""
        known = zip(self.found, self._of, strict=True)
        differ = any(of == device and difference.name != f"{device} {POWER_LIMIT}" for difference, of in known)
        return not (self._inexact or differ)

    def _compare_device(self, type: str, before: Environment, after: Environment) -> None:
        ours, theirs = before.device(type), after.device(type)
        if type != "cpu":  # its name is the CPU's
            names = [card.name if card is not None and card.available else None for card in (ours, theirs)]
            self._compare(f"{type} device", names[0], names[1], matters=True)
        if ours is not None and theirs is not None:
            self._compare(f"{type} driver", ours.driver, theirs.driver)
            self._compare_each(ours.details, theirs.details, f"{type} ")
            limits = [card.state.power_limit_watts if card.state else None for card in (ours, theirs)]
            if None not in limits:
                self._compare(f"{type} {POWER_LIMIT}", f"{limits[0]:.0f} W", f"{limits[1]:.0f} W", matters=True)
        self._of += [type] * (len(self.found) - len(self._of))

    def _compare_each(self, before: Mapping[str, str], after: Mapping[str, str], prefix: str = "") -> list[str]:
        """Record the differences of two tables, with `prefix` before each name; return the names without it."""
        names = sorted(before.keys() | after.keys())
        return [name for name in names if self._compare(f"{prefix}{name}", before.get(name), after.get(name))]

    def _compare(self, name: str, before: object, after: object, matters: bool = False) -> bool:
        """Record a difference; return whether there is one."""
        if before == after:
            return False
        values = [MISSING if value in (None, "") else str(value) for value in (before, after)]
        self.found.append(Difference(name=name, baseline=values[0], candidate=values[1], matters=matters))
        self._inexact = self._inexact or name in _INEXACT
        return True


def other_file(workload: str, baseline: Header, candidate: Header) -> tuple[str, str] | None:
    """Return the two files of a workload, from where their paths part; None for the same file.

    None also across machines and within a session, where folders differ anyway.
    """
    if baseline.environment.host != candidate.environment.host or None not in (baseline.arm, candidate.arm):
        return None
    paths = [
        next((source.module for source in header.sources if source.name == workload), "")
        for header in (baseline, candidate)
    ]
    if paths[0] == paths[1] or not all(path.endswith(".py") for path in paths):
        return None
    parts = [PurePath(path).parts for path in paths]
    shared = next((place for place, both in enumerate(zip(*parts, strict=False)) if both[0] != both[1]), 0)
    return str(PurePath(*parts[0][shared:])), str(PurePath(*parts[1][shared:]))


def one_session(baseline: Header, candidate: Header) -> bool:
    """Return whether both sides are arms of one A/B session."""
    ours, theirs = baseline.arm, candidate.arm
    return ours is not None and theirs is not None and ours.session == theirs.session


def _same_code(baseline: Header, candidate: Header) -> bool:
    """Return whether both sides certainly ran the same code.

    Files with uncommitted changes are certainly the same within one session only. Outside a repository there is no
    commit: then only built-in workloads are certainly the same.
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


Values = tuple[float | None, float | None]


def imported_finding(pair: Pair, metric: str, values: Values) -> Change | None:
    """Return the incomparable finding on a metric if a side has only a reading of it; else None.

    `values` are derived from raw entries, None without these. A reading has no rounds, counter or digests to judge by.
    """
    facts: dict[str, float | str] = {}
    known = list(values)
    for place, (name, side) in enumerate(pair._asdict().items()):
        reading = side.run.stored.readings.get(metric, {}).get(side.case_id)
        if values[place] is None and reading is not None:
            imported = side.run.stored.header.imported
            known[place], facts[name] = reading, "ampbench" if imported is None else imported.program
    return incomparable(pair.baseline.case, metric, ChangeCode.IMPORTED, facts, known) if facts else None


def incomparable(
    case: Case, metric: str, code: ChangeCode, facts: Mapping[str, float | str], values: Sequence[float | None]
) -> Change:
    """Return the finding that the two `values` of a metric are incomparable."""
    return change_of(case, metric, ChangeStatus.INCOMPARABLE, code, facts, values)


def change_of(
    case: Case,
    metric: str,
    status: ChangeStatus,
    code: ChangeCode,
    facts: Mapping[str, float | str],
    values: Sequence[float | None] = (None, None),
    **more: Any,
) -> Change:
    """Return the finding on the two `values` of a metric; `more` are further fields."""
    more |= {"kind": GATED[metric].kind, "baseline": values[0], "candidate": values[1]}
    return Change(case=case, metric=metric, status=status, code=code, facts=facts, **more)
