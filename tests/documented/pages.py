"""The pages of the documentation: their fences, and every command on them.

A command is a line of a fence that holds commands, a `run:` of a fence in YAML, or inline code that begins with a
program.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampbench.cli.main import GROUPS, VERBS

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"ampbench", "asv", "pytest", "pip", "pipx", "conda", "uv", "make", "python", "python3", "ray"} | {
    *("bash", "cd", "cp", "curl", "docker", "export", "git", "mkdir", "sh", "sudo")
}
"""What begins a line that is a command, in a fence that does not say so, and in inline code."""

_SHELL = ("sh", "bash", "shell", "console")
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`((?:[^`\n]|\n(?!\n))+)`(?!`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What stands between ``` on a page; `line` is that of its first line of text, `before` the paragraph above it."""

    page: str
    line: int
    language: str
    text: str
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as it stands on a page; `inline`: within a sentence, where it may be no more than a name."""

    page: str
    line: int
    text: str
    inline: bool = False

    @property
    def words(self) -> list[str]:
        """The words before any pipe, redirection or comment."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("<>|&;"):
                break
            words.append(word)
        return words

    @property
    def program(self) -> str:
        return self.text.split()[0]

    @property
    def verb(self) -> str:
        """Of a call of ampbench what it asks for: "run", "explain casts"; "" where it names nothing."""
        program, *words = self.words
        if program != "ampbench" or not words or words[0] not in VERBS:
            return ""
        return " ".join(words[: 2 if words[0] in GROUPS else 1])

    @property
    def is_mention(self) -> bool:
        """Whether it only names a program, a verb or flags, or tells what may be given, and so is nothing to run."""
        if not self.inline:
            return False
        if self.program not in ("ampbench", "asv", "git"):
            return len(self.words) == 1
        given = self.words[1 + len(self.verb.split()) if self.verb else 2 :]
        return bool(re.search(r"[\[<…]|\.\.\.", self.text)) or all(word.startswith("-") for word in given)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str) -> list[Fence]:
    """Return the fences of a page in their order."""
    text = read(page)
    return [
        Fence(
            page=page,
            line=text.count("\n", 0, match.start(3)) + 1,
            language=match[2],
            text=re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE),
            before=text[: match.start()].rstrip().rpartition("\n\n")[2],
        )
        for match in _FENCE.finditer(text)
    ]


def prose(page: str) -> str:
    """Return a page without its fences, every line where it was."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), read(page))


def inline_code(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of all inline code of a page; a line break within it is a space."""
    text = prose(page)
    for match in _INLINE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[1].split())


def commands(page: str) -> list[Command]:
    """Return every command of a page in order: those of its fences, then those within sentences."""
    found = [Command(page=page, line=line, text=text) for one in fences(page) for line, text in _lines(one)]
    for line, code in inline_code(page):
        text = code.removeprefix("$ ")
        if text.split()[0] in PROGRAMS:
            found.append(Command(page=page, line=line, text=text, inline=True))
    return found


def _lines(fence: Fence) -> Iterator[tuple[int, str]]:
    """Yield line and text of the commands of a fence; a line that ends with a backslash goes on in the next."""
    if fence.language in ("yaml", "yml"):
        import yaml  # of the dev group, and this module is imported by a conftest

        yield from ((fence.line, text) for one in runs(yaml.safe_load(fence.text)) for text in one.splitlines())
    if fence.language not in ("", "text", *_SHELL):
        return
    lines = re.sub(r"\\\n *", lambda match: " " * len(match[0][:-1]), fence.text).splitlines()
    prompted = [line for line in lines if line.startswith("$ ")]
    script = fence.language in _SHELL or (bool(lines) and lines[0].split()[:1] and lines[0].split()[0] in PROGRAMS)
    for number, line in enumerate(lines, fence.line):
        text = line.removeprefix("$ ").rstrip()
        if prompted:
            wanted = line.startswith("$ ")
        else:
            wanted = bool(text) and not text.startswith("#") and (script or text.partition(" ")[0] in PROGRAMS)
        if wanted:
            yield number, re.sub(r" {2,}#.*", "", text)


def runs(workflow: Any) -> Iterator[str]:
    """Yield every `run` in a workflow, or in a part of one."""
    if isinstance(workflow, dict):
        if "run" in workflow:
            yield workflow["run"]
        workflow = list(workflow.values())
    if isinstance(workflow, list):
        for one in workflow:
            yield from runs(one)
