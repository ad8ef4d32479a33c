"""The axes: which x a run has, and in which order the x stand."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from packaging.version import InvalidVersion, Version

from ampbench.errors import StoreError
from ampbench.records.runs import DIRTY, Header, short_commit
from ampbench.trends.history import History
from ampbench.trends.series import X

TORCH = "torch_version"
"""The axis over which the commit is held fixed; over others the version of torch is."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A run's `x` and what it is sorted by."""

    x: X
    key: tuple[Any, ...]


Placement = tuple[list[Placed | None], Counter[str]]
"""The x of each run, None where it has none, and why, counted."""


def by_torch_version(headers: Sequence[Header], history: History) -> Placement:  # noqa: ARG001 - as all axes
    """Place runs by the public version of torch ("2.15.0" of 2.15.0+cu132), in the order of PEP 440.

    Versions that PEP 440 calls equal ("2.15" and "2.15.0") are one x, as the first of them is written.
    """
    placed: list[Placed | None] = []
    names: dict[Version, X] = {}
    reasons: Counter[str] = Counter()
    for header in headers:
        text = header.environment.torch_version
        try:
            version = Version(text)
        except InvalidVersion:
            placed.append(None)
            reasons["an unreadable torch version" if text else "no torch version"] += 1
            continue
        public = Version(version.public)
        x = names.setdefault(public, X(value=version.public, label=version.public))
        placed.append(Placed(x, (public,)))
    return placed, reasons


def public_version(text: str) -> Version:
    """Return a version of torch to sort by, without its build; what is none comes before all others."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return Version("0.dev0")


def by_commit(headers: Sequence[Header], history: History) -> Placement:
    """Place runs by commit, in the order of the commits' times: as recorded, else git's, else when first measured.

    Commits of one second are in git's order of descent. A commit with changes beside it ("-dirty") follows its own.
    Raises `StoreError` for a time that is none.
    """
    bases = [header.commit.removesuffix(DIRTY) if header.commit else None for header in headers]
    names = [base for base in dict.fromkeys(bases) if base]
    known = history.commits(names)
    times: dict[str, float] = {}
    measured: dict[str, float] = {}
    for base, header in zip(bases, headers, strict=True):
        if base is None:
            continue
        if header.committed_at and base not in times:
            times[base] = _moment(header.committed_at, header).timestamp()
        started = _moment(header.started_at, header).timestamp()
        measured[base] = min(started, measured.get(base, started))
    for base in names:
        times.setdefault(base, known[base].time if base in known else measured[base])
    ranks: Mapping[str, int] = {}
    if len(set(times.values())) < len(times):
        ranks = history.ranks(base for base in names if base in known)
    placed: list[Placed | None] = []
    for base, header in zip(bases, headers, strict=True):
        if base is None or header.commit is None:
            placed.append(None)
            continue
        dirty = header.commit.endswith(DIRTY)
        title = known[base].subject if base in known else ""
        key = (times[base], ranks.get(base, 0), measured[base], base, dirty)
        placed.append(Placed(X(value=header.commit, label=short_commit(header.commit), title=title), key))
    return placed, Counter({"no commit": placed.count(None)} if None in placed else {})


def by_date(headers: Sequence[Header], history: History) -> Placement:  # noqa: ARG001 - as all axes
    """Place each run by itself, at the time when it began (UTC). Raises `StoreError` for a time that is none."""
    placed: list[Placed | None] = []
    for header in headers:
        moment = _moment(header.started_at, header)
        x = X(value=header.started_at, label=moment.strftime("%Y-%m-%d %H:%M"), title=header.run)
        placed.append(Placed(x, (moment.timestamp(), header.run)))
    return placed, Counter()


AXES: Mapping[str, Callable[[Sequence[Header], History], Placement]] = MappingProxyType(
    {TORCH: by_torch_version, "commit": by_commit, "date": by_date}
)
"""What a trend may run over."""


def ordered(placed: Iterable[Placed]) -> list[Placed]:
    """Return the first of each key, in order."""
    first: dict[tuple[Any, ...], Placed] = {}
    for one in placed:
        first.setdefault(one.key, one)
    return sorted(first.values(), key=lambda one: one.key)


def _moment(text: str, header: Header) -> datetime:
    """Return a time in ISO 8601 of a run, in UTC; without an offset it is that."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise StoreError(
            f"run {header.run}: {text!r} is no time (2026-01-31T12:00:00Z): mend its header, or leave the run out"
        ) from None
