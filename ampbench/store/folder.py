"""The results folder: its runs, the run that a name stands for, and whether run files are sound."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.kinds import deed_of
from ampbench.records.run import COMPRESSED, LATEST, SUFFIX, Header, is_path
from ampbench.store.run_file import CLOCKS_APART, StoredRun, begun_at, read_header, read_run, run_id

Doubt = Callable[[str], object]
"""Receives, in a sentence each, reasons to doubt which run is meant."""


def list_runs(results: Path | str) -> list[Path]:
    """Return the run files of a results folder, the oldest by id first; none without such a folder.

    Of a run that is there twice, plain and compressed, it is the plain. Raises `StoreError` for a folder that cannot be
    read.
    """
    return _runs_in(Path(results) / "runs")


def run_files(folder: Path, *, measuring: bool = False) -> list[Path]:
    """Return the run files of any folder, a results folder or one of run files; `measuring`: of runs that measured.

    Shards of a merged run in it are left out: their measurements are there once.
    """
    files = _runs_in(folder / "runs" if (folder / "runs").is_dir() else folder)
    merged = {run for runs in merged_in(files).values() for run in runs}
    return [file for file in files if run_id(file) not in merged and (not measuring or measures(file))]


def _header_of(file: Path) -> Header | None:
    """Return the header of a run file; None for a damaged one, which is its reader's matter."""
    with contextlib.suppress(StoreError):
        return read_header(file)
    return None


def merged_in(files: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the files of merged runs, each with the ids of the runs that it was made of."""
    return {file: header.merged for file in files if (header := _header_of(file)) and header.merged}


def measured_files(folder: Path) -> list[Path]:
    """Return the files of the runs in any folder that measured, the oldest first.

    Raises `StoreError` if there is no run, `UsageError` if all runs only explain.
    """
    files = run_files(folder, measuring=True)
    if not files:
        if others := run_files(folder):
            raise UsageError(not_measured(read_header(others[-1])))
        raise StoreError(f"there is no run file in {folder}: measure with `ampbench run`, or give another folder")
    return files


def not_measured(header: Header) -> str:
    """Return a sentence on a run that only explains, and how to see it."""
    return f"run {header.run} {deed_of(header.explains)} and measured nothing: ampbench show {header.run}"


def measures(file: Path) -> bool:
    """Return whether the run in `file` measured; an unreadable one counts, for its reader to say why."""
    header = _header_of(file)
    return header is None or not header.explains


def runs_beside(stored: StoredRun, explains: str) -> list[StoredRun]:
    """Return the runs of the kind `explains` in the folder of a run, of its host and torch version, the oldest first.

    Unreadable ones are left out.
    """
    own = stored.header.environment

    def is_its(header: Header) -> bool:
        there = header.environment
        return header.explains == explains and (there.host, there.torch_version) == (own.host, own.torch_version)

    return list(runs_with(_runs_in(stored.path.parent), is_its))


def runs_with(files: Iterable[Path], wanted: Callable[[Header], bool]) -> Iterator[StoredRun]:
    """Yield the runs of those `files` whose header is `wanted`; unreadable ones are left out."""
    for file in files:
        with contextlib.suppress(StoreError):
            if wanted(read_header(file)):
                yield read_run(file)


def check_folder(results: Path | str) -> None:
    """Raise `UsageError` if there is no such results folder."""
    if not Path(results).is_dir():
        raise UsageError(
            f"there is no results folder {results}: `ampbench run` makes one, --results (results=) names another"
        )


def check_runs(results: Path | str) -> None:
    """Raise `NothingToRunError` for a results folder without a run, `UsageError` if there is no such folder."""
    check_folder(results)
    if not list_runs(results):
        raise NothingToRunError(f"there is no run in {Path(results) / 'runs'}: `ampbench run` makes one")


def find_run(name: str, results: Path | str, doubt: Doubt = lambda _: None) -> Path:
    """Return the file of the run called `name`: an id, its beginning or its last part, `latest`, or a path.

    `latest` is the run that measured and began last; `doubt` receives unreadable files that may be later, and clocks
    that make that hard to tell. Raises `UnknownNameError` with the nearest ids for an unknown name, `UsageError` for a
    path without a run file and for a name of several runs, and what `check_runs` does.
    """
    if is_path(name):
        return _file_at(name)
    check_runs(results)
    paths = {run_id(path): path for path in list_runs(results)}
    if name == LATEST:
        return _latest(list(paths.values()), doubt)
    if name in paths:
        return paths[name]
    matching = [run for run in paths if name and (run.startswith(name) or run.rpartition("-")[2].startswith(name))]
    if not matching:
        if name and _holds_runs(Path(name)):
            raise UsageError(_FOLDER_OF_RUNS.format(name))
        newest = list(paths)[-5:]
        some = f"the last 5 of {len(paths):,} are {', '.join(newest)}; ampbench list runs lists all"
        near = get_close_matches(name, [*paths, LATEST], n=3, cutoff=0.5)
        raise UnknownNameError("run", name, near or newest, instead=some if len(paths) > len(newest) else "")
    if len(matching) > 1:
        some = ", ".join(matching[-5:])
        raise UsageError(f"{len(matching)} runs begin or end with {name!r}: say more of one, such as {some}")
    return paths[matching[0]]


_FOLDER_OF_RUNS = "{0} is a results folder, not a run: name one of its runs and say --results {0}"


def _file_at(name: str) -> Path:
    """Return the path `name`; `UsageError` if no file is there."""
    path = Path(name)
    if path.is_dir():
        raise UsageError(_FOLDER_OF_RUNS.format(name) if _holds_runs(path) else f"{name} is a folder, not a run file")
    if not path.is_file():
        raise UsageError(f"there is no run file {name}")
    return path


def _holds_runs(folder: Path) -> bool:
    """Return whether this is a results folder with runs that can be listed."""
    with contextlib.suppress(StoreError):
        return bool(list_runs(folder))
    return False


def find_runs(name: str, results: Path | str, doubt: Doubt = lambda _: None) -> list[Path]:
    """Return the file of the run called `name`, as `find_run` does, or all of a fleet, by its id or as `latest`.

    A run of a fleet is named by more than the id that all of them end in.
    """
    members = [] if is_path(name) else _of_fleet(name, results)
    files = members if len(members) > 1 else [find_run(name, results, doubt)]
    fleet = read_header(files[0]).fleet if name == LATEST else None
    return files if fleet is None else find_runs(fleet.id, results)


def find_fleet(name: str, results: Path | str) -> list[Path]:
    """Return the files of the runs of the fleet called `name`, its id or one of its runs.

    Raises `UsageError` for a run of no fleet, and what `find_run` does.
    """
    path = find_runs(name, results)[0]
    fleet = read_header(path).fleet
    if fleet is None:
        raise UsageError(f"run {run_id(path)} is no fleet's: leave --ray out to go on with it here")
    return _of_fleet(fleet.id, path.parent.parent)


def _of_fleet(id: str, results: Path | str) -> list[Path]:
    return [path for path in list_runs(results) if run_id(path).endswith(f"-{id}")]


def _latest(paths: Sequence[Path], doubt: Doubt) -> Path:
    """Return the file, of `paths` sorted by id, of the run that measured and began last."""
    measured: dict[Path, Header] = {}
    unreadable: list[str] = []  # and later than all that measured
    for path in paths:
        try:
            header = read_header(path)
        except StoreError as error:
            unreadable.append(str(error))
            continue
        if not header.explains:
            measured[path] = header
            unreadable.clear()
    if not measured:
        if unreadable:
            raise StoreError(f"no run can be read: {unreadable[-1]}")
        raise NothingToRunError(f"no run in {paths[0].parent} has measured: do so with `ampbench run`")
    for problem in reversed(unreadable):
        doubt(f"latest leaves out what cannot be read: {problem}")
    newest = last = list(measured)[-1]
    followers = {header.follows: path for path, header in measured.items() if header.follows}
    while follower := followers.pop(run_id(last), None):
        last = follower
    if last != newest:
        doubt(f"latest is {run_id(last)}: it was begun after {run_id(newest)}, by a clock that had gone back")
    elif (begun := begun_at(run_id(newest))) and begun > datetime.now(UTC) + CLOCKS_APART:
        doubt(f"latest is {run_id(newest)}, by a clock that was ahead of this one: runs begun since look older")
    return last


def check_results(results: Path | str) -> list[tuple[Path, str | None]]:
    """Return every run file in a folder and below with its damage (None: sound, or cut), and unreadable folders."""
    problems: dict[Path, str | None] = {}

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = f"cannot read {error.filename}: {error.strerror}"

    files: list[Path] = []
    for holder, folders, names in os.walk(results, onerror=unreadable):
        folders.sort()
        files += _sorted(Path(holder) / name for name in [*names, *folders])
    if what := _no_holder(Path(results) / "runs"):
        problems[Path(results) / "runs"] = what
    return [*problems.items(), *((file, _problem(file)) for file in files)]


def _problem(file: Path) -> str | None:
    try:
        stored = read_run(file, on_rounds=lambda _: None)
    except StoreError as error:
        return str(error)
    what = stored.misnamed or stored.lost
    return f"{file} {what}" if what else None


def _runs_in(holder: Path) -> list[Path]:
    """Return the run files in a folder by id, the plain one of a run that is also there compressed.

    None without such a folder; `StoreError` if it is no folder, or cannot be read.
    """
    if what := _no_holder(holder):
        raise StoreError(what)
    try:
        files = _sorted(holder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {holder}: {error.strerror}") from None
    return list({run_id(file): file for file in files}.values())


def _sorted(files: Iterable[Path]) -> list[Path]:
    """Return run files by id, a compressed one before the plain one of the same id."""
    named = (file for file in files if file.name.endswith((SUFFIX, COMPRESSED)))
    return sorted(named, key=lambda file: (run_id(file), -len(file.name)))


def _no_holder(holder: Path) -> str:
    """Return what is wrong with a folder of run files that is no folder."""
    return f"cannot read {holder}: it is no folder" if holder.exists() and not holder.is_dir() else ""
