"""An arm of an A/B comparison: its Python, commit, settings and files."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from ampbench.core.recipes import parse_optimizer
from ampbench.core.units import counted, parse_value
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import OF_CASES, WorkloadSource
from ampbench.records.run import Selection, Settings

HERE = "here"
"""An arm of this interpreter and the current files."""

CASE_SETTINGS = ("threads", "precision", "path", "optimizer", *OF_CASES)
"""The settings of an arm that are options or of cases; an upper-case name is a variable, any other a parameter."""
THREADS = "threads"
"""The setting in `Settings`; the others select cases."""

_SETTING = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
_GIT_SECONDS = 120.0


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


def repository_paths() -> list[Path]:
    """Return the first import paths of `here`, in a comparison with a commit of its repository.

    The commit's files come before an installed copy of the project in its arm, and so must the current ones.
    """
    root = Path(_git("here", "rev-parse", "--show-toplevel"))
    return Checkout(commit="", root=root, repository=root).paths


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
    return replace(selection, overrides=overrides, **changes)


def settings_of(arm: ArmRequest, settings: Settings) -> Settings:
    """Return `settings` with the arm's number of threads, if it sets one."""
    threads = arm.settings.get(THREADS)
    if threads is None:
        return settings
    if not threads.isdecimal() or not 1 <= int(threads) <= 4096:
        raise UsageError(f"threads={threads}: give a whole number from 1 to 4096")
    return replace(settings, threads=int(threads))


def source_in(checkout: Checkout | None, source: WorkloadSource) -> WorkloadSource:
    """Return the arm's source of a workload: a user's file inside the repository comes from the arm's commit.

    Raises `UsageError` where the commit does not have the file.
    """
    if checkout is None or not source.module.endswith(".py"):
        return source
    path = checkout.translated(Path(source.module))
    if not path.is_file():
        raise UsageError(f"commit {checkout.commit[:12]} has no file {path.relative_to(checkout.root)}")
    return replace(source, module=str(path))


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
    try:
        folder = tempfile.TemporaryDirectory(prefix="ampbench-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"{option}: no temporary folder can be made: {error.strerror}") from None
    with folder:
        root = Path(folder.name) / repository.name
        root.mkdir()
        for arguments in (["read-tree", commit], ["checkout-index", "--all", f"--prefix={root}/"]):
            _git(option, *arguments, folder=repository, GIT_INDEX_FILE=f"{folder.name}/index")
        yield Checkout(commit=commit, root=root, repository=repository)


def left_out(arms: Iterable[ArmRequest]) -> str:
    """Return a note where every arm is a commit and the current files have changes, which no arm includes.

    With two commits the note names the arm that would include them; a commit against itself has no other arm.
    """
    refs = list(dict.fromkeys(arm.ref for arm in arms))
    if "" in refs:
        return ""
    changed = len(_git("--candidate", "status", "--porcelain", "--untracked-files=no").splitlines())
    if not changed:
        return ""
    changes = f"your uncommitted changes ({counted(changed, 'file')})"
    if len(refs) == 1:
        return f"git:{refs[0]} does not have {changes}"
    return f"neither arm has {changes}: {HERE} has the current files"


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
            timeout=_GIT_SECONDS, check=False, cwd=folder, env={**os.environ, **variables},
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{option} git:REF needs git, which cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{option}: git {arguments[0]} took longer than {_GIT_SECONDS:.0f} s") from None
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
