"""The commits of an axis as git knows them: their first lines, their order, and how many are between two of them."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_TIMEOUT_SECONDS = 30


class History:
    """The repository of the current folder, or of `folder`; outside one, nothing is known."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def subjects(self, names: Iterable[str]) -> dict[str, str]:
        """Return the first lines of the messages of those commits called `names` that the repository has."""
        asked = _hashes(names)
        wanted = ("--no-show-signature", "--no-walk=unsorted", "--ignore-missing", "--format=%H %s", "--stdin")
        answer = self._git("log", *wanted, given="\n".join(asked)) if asked else ""
        lines = dict(line.split(" ", 1) for line in answer.split("\n") if line)
        return {name: lines[name] for name in asked if name in lines}

    def ranks(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the places of known commits in their order of descent, the oldest first."""
        asked = _hashes(names)
        answer = self._git("rev-list", "--topo-order", "--reverse", *asked) if asked else ""
        return {name: place for place, name in enumerate(answer.split())}

    def between(self, before: str, after: str) -> int | None:
        """Return how many commits lead from `before` to `after`, itself counted; None where that is not known."""
        if len(_hashes([before, after])) < 2:
            return None
        return int(self._git("rev-list", "--count", f"{before}..{after}", "--") or 0) or None

    def _git(self, *arguments: str, given: str = "") -> str:
        """Return the answer of git, "" where it has none."""
        try:
            done = subprocess.run(
                ["git", *arguments],
                input=given.encode(),
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=True,
                cwd=self._folder,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.decode(errors="replace")


def _hashes(names: Iterable[str]) -> list[str]:
    """Return those names, each once, that are hashes: what else a file calls a commit might be an option to git."""
    return [name for name in dict.fromkeys(names) if re.fullmatch("[0-9a-f]{7,64}", name)]
