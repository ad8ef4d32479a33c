"""The results folder: the names of its runs, the one who writes to each, which is meant, and whether they are sound."""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path

from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.kinds import deed_of
from ampbench.records.run import COMPRESSED, LATEST, SUFFIX, Header, is_path
from ampbench.store.reading import StoredRun, first_line, read_header, read_run, run_id, what_else

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def lock(path: Path, descriptor: int) -> None:
    """Lock the run file at `path`, open as `descriptor`, against other writers until that is closed.

    Raises `StoreError` where another writes it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"{path} is being written by another ampbench: wait for it or begin a new run") from None
    except OSError as error:
        # some network file systems have no locks; measuring must be possible there, too
        if error.errno not in _NO_LOCKS:
            raise StoreError(f"cannot lock {path}: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make a new file's name as lasting as its contents, where the file system can (some network ones cannot)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


CLOCKS_APART = timedelta(minutes=1)
"""Runs of several machines, or begun at once, may be named in another order than they were begun in."""
_TIME = re.compile(r"(\d{8}T\d{6})Z-")
_FOLLOWS, _MERGED = b'"follows":"', b'"merged":["'


def list_runs(results: Path | str) -> list[Path]:
    """Return the run files of a results folder, the oldest by id first; none where there is no such folder.

    A run that is there twice, plain and compressed, is the plain. Raises `StoreError` where the folder cannot be read.
    """
    return _told_apart(_files(Path(results) / "runs"))


def run_files(folder: Path, *, measuring: bool = False) -> list[Path]:
    """Return the same of any folder, a results folder or one of run files; with `measuring`, only of runs that did.

    Shards that another run there was put together from are left out: what they measured is there once.
    """
    files = _told_apart(_files(folder / "runs" if (folder / "runs").is_dir() else folder))
    merged = {run for runs in merged_in(files).values() for run in runs}
    return [file for file in files if run_id(file) not in merged and (not measuring or measures(file))]


def merged_in(files: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the files of runs that were put together, each with the ids of the runs that it was put together from."""
    found = {}
    for file in files:
        with contextlib.suppress(StoreError):  # a damaged one is its reader's matter
            if _MERGED in first_line(file):
                found[file] = read_header(file).merged
    return found


def files_below(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Return every run file in a folder and in those below it, and what is wrong with folders that cannot be read."""
    problems: dict[Path, str] = {}
    found: list[Path] = []

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = f"cannot read {error.filename}: {error.strerror}"

    for holder, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        found += _sorted(Path(holder) / name for name in [*names, *folders])
    if what := _no_holder(folder / "runs"):
        problems[folder / "runs"] = what
    return found, problems


def measured_files(folder: Path) -> list[Path]:
    """Return the files of the runs in any folder that measured, the oldest first.

    Raises `StoreError` where there is no run, `UsageError` where those that are there only explain.
    """
    files = run_files(folder, measuring=True)
    if not files:
        if others := run_files(folder):
            raise UsageError(not_measured(read_header(others[-1])))
        raise StoreError(f"there is no run file in {folder}: measure with `ampbench run`, or give another folder")
    return files


def not_measured(header: Header) -> str:
    """Say that a run only explains, and how to see what."""
    return f"run {header.run} {deed_of(header.explains)} and measured nothing: ampbench show {header.run}"


def _told_apart(files: list[Path]) -> list[Path]:
    """Return one file of each run."""
    return list({run_id(file): file for file in files}.values())


def _files(holder: Path) -> list[Path]:
    """Return all run files in a folder by id, a compressed one before the plain one of the same id.

    There are none where there is no such folder; `StoreError` where there is something else, or it cannot be read.
    """
    if what := _no_holder(holder):
        raise StoreError(what)
    try:
        return _sorted(holder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {holder}: {error.strerror}") from None


def _no_holder(holder: Path) -> str:
    """Return what is wrong where run files would be in `holder` and it is no folder."""
    return f"cannot read {holder}: it is no folder" if holder.exists() and not holder.is_dir() else ""


def _sorted(files: Iterable[Path]) -> list[Path]:
    found = [file for file in files if file.name.endswith((SUFFIX, COMPRESSED))]
    return sorted(found, key=lambda file: (run_id(file), -len(file.name)))


def runs_beside(stored: StoredRun, explains: str) -> list[StoredRun]:
    """Return the runs of what `explains` names that lie in the folder of a run; what cannot be read is left out.

    They are those of its host and torch version, the oldest by id first.
    """
    own = stored.header.environment

    def is_its(header: Header) -> bool:
        there = header.environment
        return header.explains == explains and (there.host, there.torch_version) == (own.host, own.torch_version)

    return list(runs_with(_told_apart(_files(stored.path.parent)), is_its))


def runs_with(files: Iterable[Path], wanted: Callable[[Header], bool]) -> Iterator[StoredRun]:
    """Yield the runs of those `files` whose header is `wanted`; what cannot be read is left out."""
    for file in files:
        try:
            if wanted(read_header(file)):
                yield read_run(file)
        except StoreError:
            continue


def check_folder(results: Path | str) -> None:
    """Raise `UsageError` where there is no results folder of this name."""
    if not Path(results).is_dir():
        raise UsageError(f"there is no results folder {results}: `ampbench run` makes one, --results names another")


def check_runs(results: Path | str) -> None:
    """Raise `NothingToRunError` for a results folder without a run, `UsageError` where there is no such folder."""
    check_folder(results)
    if not list_runs(results):
        raise NothingToRunError(f"there is no run in {Path(results) / 'runs'}: `ampbench run` makes one")


def measures(file: Path) -> bool:
    """Return whether the run in `file` measured; so does one that cannot be read, for its reader to say why."""
    try:
        return not read_header(file).explains
    except StoreError:
        return True


def find_run(name: str, results: Path | str, doubt: Callable[[str], object] = lambda _: None) -> Path:
    """Return the file of the run called `name`: an id, its beginning or its last part, `latest`, or a path.

    `latest` is the run that measured and was begun last; `doubt` is told, in a sentence each, of files that cannot be
    read and may be later, and of clocks that make that hard to tell.

    Raises `UnknownNameError` with the nearest ids for anything else, `UsageError` for a path at which there is no run
    file and where several runs are meant, and what `check_runs` does where there is none.
    """
    if is_path(name):
        if other := what_else(Path(name)):
            raise UsageError(
                _FOLDER_OF_RUNS.format(name) if _holds_runs(Path(name)) else f"{name} is {other}, not a run file"
            )
        if not Path(name).is_file():
            raise UsageError(f"there is no run file {name}")
        return Path(name)
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
        near = [*get_close_matches(name, [*paths, LATEST], n=3, cutoff=0.5)]
        raise UnknownNameError("run", name, near or newest, instead=some if len(paths) > len(newest) else "")
    if len(matching) > 1:
        some = ", ".join(matching[-5:])
        raise UsageError(f"{len(matching)} runs begin or end with {name!r}: say more of one, such as {some}")
    return paths[matching[0]]


_FOLDER_OF_RUNS = "{0} is a results folder, not a run: name one of its runs and say --results {0}"


def _holds_runs(folder: Path) -> bool:
    """Return whether this is a results folder with runs that can be listed."""
    with contextlib.suppress(StoreError):
        return bool(list_runs(folder))
    return False


def find_runs(name: str, results: Path | str, doubt: Callable[[str], object] = lambda _: None) -> list[Path]:
    """Return the file of the run called `name`, as `find_run` does, or all of a fleet: by its id, or as `latest`.

    One run of a fleet is named by more than the id that all of them end in.
    """
    members = [] if is_path(name) else [path for path in list_runs(results) if run_id(path).endswith(f"-{name}")]
    found = members if len(members) > 1 else [find_run(name, results, doubt)]
    fleet = read_header(found[0]).fleet if name == LATEST else None
    return found if fleet is None else find_runs(fleet.id, results)


def find_fleet(name: str, results: Path | str) -> list[Path]:
    """Return the files of the runs of the fleet called `name`, its id or one of its runs.

    Raises `UsageError` for a run that is no fleet's, and what `find_run` does.
    """
    path = find_runs(name, results)[0]
    fleet = read_header(path).fleet
    if fleet is None:
        raise UsageError(f"run {run_id(path)} is no fleet's: leave --ray out to go on with it here")
    return [one for one in list_runs(path.parent.parent) if run_id(one).endswith(f"-{fleet.id}")]


def _latest(paths: Sequence[Path], doubt: Callable[[str], object]) -> Path:
    """Return which of the files `paths`, sorted by id, is of the run that measured and was begun last."""
    unreadable: list[str] = []
    newest = None
    for path in reversed(paths):
        try:
            explains = read_header(path).explains
        except StoreError as error:
            unreadable.append(str(error))
            continue
        if not explains:
            newest = path
            break
    if newest is None:
        if unreadable:
            raise StoreError(f"no run can be read: {unreadable[0]}")
        raise NothingToRunError(f"no run in {paths[0].parent} has measured: do so with `ampbench run`")
    for said in unreadable:
        doubt(f"latest leaves out what cannot be read: {said}")
    last = _begun_after(newest, paths)
    if last != newest:
        doubt(f"latest is {run_id(last)}: it was begun after {run_id(newest)}, by a clock that had gone back")
    elif (begun := _moment(run_id(newest))) and begun > datetime.now(UTC) + CLOCKS_APART:
        doubt(f"latest is {run_id(newest)}, by a clock that was ahead of this one: runs begun since look older")
    return last


def _begun_after(newest: Path, paths: Sequence[Path]) -> Path:
    """Return the last of the runs that measured and say that they follow `newest`, or one that does; else itself."""
    followers: dict[str, Path] = {}
    for path in paths:
        try:
            if _FOLLOWS in first_line(path) and not (header := read_header(path)).explains and header.follows:
                followers[header.follows] = path
        except StoreError:
            continue
    seen, last = {newest}, newest
    while (follower := followers.get(run_id(last))) and follower not in seen:
        seen.add(follower)
        last = follower
    return last


def followed(run: str, results: Path | str) -> str | None:
    """Return the id of the run that is there and is the latest by its name, where `run`, now begun, looks older."""
    others = [other for other in map(run_id, list_runs(results)) if other != run and _moment(other)]
    latest, own = max(others, default=""), _moment(run)
    there = _moment(latest)
    return latest if own and there and there > own + CLOCKS_APART else None


def _moment(run: str) -> datetime | None:
    """Return when a run was begun, as its id says; None where that tells no time."""
    if not (found := _TIME.match(run)):
        return None
    try:
        return datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def check_results(results: Path | str) -> list[tuple[Path, str | None]]:
    """Return every run file in a folder and in those below it with what is wrong with it, and folders not readable.

    None: nothing is (a cut is no damage).
    """
    files, problems = files_below(Path(results))
    return [*problems.items(), *((path, _problem(path)) for path in files)]


def _problem(path: Path) -> str | None:
    try:
        stored = read_run(path, on_rounds=lambda _: None, check_traces=True)
    except StoreError as error:
        return str(error)
    said = stored.misnamed or stored.lost
    return f"{path} {said}" if said else None
