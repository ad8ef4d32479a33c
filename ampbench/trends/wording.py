"""In what the runs on both sides of a change differ, in one line."""

from ampbench.comparing.environments import EnvironmentDifferences
from ampbench.records.runs import DIRTY, Header, short_commit
from ampbench.trends.history import History
from ampbench.verdicts import Difference

_FIRST = ("torch", "torch build", "torchvision")
"""What explains most is said first."""
_LONGEST = 40
"""Values longer than this, such as lists of instructions, are not written out."""
_HASHES = ("torch build",)


class Differences:
    """The differences of pairs of runs, each pair compared once."""

    def __init__(self, history: History):
        self._history = history
        self._environments: dict[tuple[str, str, str], EnvironmentDifferences] = {}
        self._commits: dict[tuple[str, str], str] = {}

    def same(self, before: Header, after: Header, device: str) -> bool:
        """Return whether numbers of `device` that luck has no part in must be equal."""
        return self._compared(before, after, device).same(device)

    def what(self, before: Header, after: Header, device: str) -> str:
        """Return in what two runs differ: "torch 2.12.1 → 2.13.0; 3 commits, abc1234 subject", "" where in nothing."""
        found = [one for one in self._compared(before, after, device).found if one.name != "commit"]
        found.sort(key=lambda one: _FIRST.index(one.name) if one.name in _FIRST else len(_FIRST))
        said = [_in_words(one) for one in found]
        if before.commit != after.commit:
            said.append(self._commit(before.commit, after.commit))
        return "; ".join(said)

    def _compared(self, before: Header, after: Header, device: str) -> EnvironmentDifferences:
        pair = (before.run, after.run, device)
        if pair not in self._environments:
            self._environments[pair] = EnvironmentDifferences(before, after, devices=[device], settings={})
        return self._environments[pair]

    def _commit(self, before: str | None, after: str | None) -> str:
        if before is None or after is None:
            return f"commit {_short(before)} → {_short(after)}"
        pair = (before, after)
        if pair not in self._commits:
            self._commits[pair] = self._between(before, after)
        return self._commits[pair]

    def _between(self, before: str, after: str) -> str:
        old, new = before.removesuffix(DIRTY), after.removesuffix(DIRTY)
        known = self._history.commits([new])
        if new not in known:
            return f"commit {_short(before)} → {_short(after)}"
        named = f"{_short(after)} {known[new].subject}".strip()
        count = self._history.between(old, new)
        if old == new:
            return f"changes that were not committed, {_short(after)}"
        return f"{count} commits, {named}" if count and count > 1 else named


def _in_words(one: Difference) -> str:
    if max(len(one.baseline), len(one.candidate)) > _LONGEST:
        before, after = (short_commit(value) if one.name in _HASHES else "" for value in (one.baseline, one.candidate))
        return f"{one.name} {before} → {after}" if before else f"other {one.name}"
    return f"{one.name} {one.baseline} → {one.candidate}"


def _short(commit: str | None) -> str:
    return "none" if commit is None else short_commit(commit)
