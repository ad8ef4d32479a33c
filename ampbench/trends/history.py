"""What git knows of commits: when they were made, what they are called, what lies between two of them."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the repository: its time in seconds since 1970 and the first line of its message."""

    time: int
    subject: str


class History:
    """The repository of the current folder, or of `folder`; outside one, nothing is known."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def commits(self, names: Iterable[str]) -> dict[str, Commit]:
        """Return those of the commits called `names` (whole hashes) that the repository has."""
        asked = _hashes(names)
        answer = self._git("cat-file", "--batch", given="".join(f"{name}\n" for name in asked)) if asked else None
        found: dict[str, Commit] = {}
        # an object is "HASH commit SIZE", its SIZE bytes and a newline, or "NAME missing" (git-cat-file(1))
        rest = answer or b""
        for name in asked:
            head, _, rest = rest.partition(b"\n")
            words = head.split()
            if len(words) != 3:
                continue
            content, rest = rest[: int(words[2])], rest[int(words[2]) + 1 :]
            if words[1] == b"commit":
                found[name] = _parsed(content.decode(errors="replace"))
        return found

    def ranks(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the places of known commits in their order of descent, the oldest first."""
        asked = _hashes(names)
        answer = self._git("rev-list", "--topo-order", "--reverse", *asked) if asked else None
        order = {name: place for place, name in enumerate((answer or b"").decode().split())}
        return {name: order[name] for name in asked if name in order}

    def between(self, before: str, after: str) -> int | None:
        """Return how many commits lead from `before` to `after`, that one counted; None where that is not known."""
        if len(_hashes([before, after])) < 2:
            return None
        answer = self._git("rev-list", "--count", f"{before}..{after}", "--")
        return int(answer) if answer else None

    def _git(self, *arguments: str, given: str = "") -> bytes | None:
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
            return None
        return done.stdout


def _hashes(names: Iterable[str]) -> list[str]:
    """Return those names, each once, that are hashes: what else a file calls a commit might be an option to git."""
    return [name for name in dict.fromkeys(names) if re.fullmatch("[0-9a-f]{7,64}", name)]


def _parsed(content: str) -> Commit:
    """Read a commit object: header lines, an empty one, the message."""
    head, _, message = content.partition("\n\n")
    committer = next((line for line in head.splitlines() if line.startswith("committer ")), "committer 0 +0000")
    return Commit(time=int(committer.split()[-2]), subject=message.partition("\n")[0].strip())
