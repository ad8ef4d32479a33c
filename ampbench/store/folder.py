"""The results folder: which runs it holds, which one is meant, whether they are sound."""

from difflib import get_close_matches
from pathlib import Path

from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.runs import COMPRESSED, SUFFIX, Header, deed_of, is_path
from ampbench.store.reading import read_header, read_run

LATEST = "latest"
"""What the newest run of a folder that measured is called; one that only explains is named by its id."""


def list_runs(results: Path | str) -> list[Path]:
    """Return the run files of a results folder, the oldest first; none where there is no such folder.

    A run that is there twice, plain and compressed, is the plain.
    """
    return _told_apart(_files(Path(results) / "runs"))


def run_files(folder: Path, *, measuring: bool = False) -> list[Path]:
    """Return the same of any folder, a results folder or one of run files; with `measuring`, only of runs that did."""
    files = _files(folder / "runs" if (folder / "runs").is_dir() else folder)
    return [file for file in _told_apart(files) if not measuring or measures(file)]


def files_below(folder: Path) -> list[Path]:
    """Return every run file in a folder and in those below it, folder by folder."""
    holders = sorted({file.parent for file in folder.rglob(f"*{SUFFIX}*")})
    return [file for holder in holders for file in _files(holder)]


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


def run_id(file: Path) -> str:
    """Return the id of the run in `file`, which is the file's name without its suffix."""
    return file.name.removesuffix(".gz").removesuffix(SUFFIX)


def _told_apart(files: list[Path]) -> list[Path]:
    """Return one file of each run."""
    return list({run_id(file): file for file in files}.values())


def _files(holder: Path) -> list[Path]:
    """Return all run files in a folder by id, a compressed one before the plain one of the same id."""
    found = [*holder.glob(f"*{SUFFIX}"), *holder.glob(f"*{COMPRESSED}")]
    return sorted(found, key=lambda file: (run_id(file), -len(file.name)))


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


def find_run(name: str, results: Path | str) -> Path:
    """Return the file of the run called `name`: an id, its beginning or its last part, `latest`, or a path.

    Raises `UnknownNameError` with the nearest ids for anything else, `UsageError` where several runs are meant, and
    what `check_runs` does where there is none.
    """
    if is_path(name):
        if not Path(name).is_file():
            raise UsageError(f"there is no run file {name}")
        return Path(name)
    check_runs(results)
    paths = {run_id(path): path for path in list_runs(results)}
    if name == LATEST:
        measured = next((path for path in reversed(paths.values()) if measures(path)), None)
        if measured is None:
            raise NothingToRunError(f"no run in {Path(results) / 'runs'} has measured: do so with `ampbench run`")
        return measured
    if name in paths:
        return paths[name]
    matching = [run for run in paths if name and (run.startswith(name) or run.rpartition("-")[2].startswith(name))]
    if not matching:
        newest = list(paths)[-5:]
        raise UnknownNameError("run", name, [*get_close_matches(name, [*paths, LATEST], n=3, cutoff=0.5)] or newest)
    if len(matching) > 1:
        some = ", ".join(matching[-5:])
        raise UsageError(f"{len(matching)} runs begin or end with {name!r}: say more of one, such as {some}")
    return paths[matching[0]]


def check_results(results: Path | str) -> list[tuple[Path, str | None]]:
    """Return every run file in a folder and in those below it with what is wrong with it.

    None: nothing is (a cut is no damage).
    """
    return [(path, _problem(path)) for path in files_below(Path(results))]


def _problem(path: Path) -> str | None:
    try:
        read_run(path, on_round=lambda _: None, check_traces=True)
    except StoreError as error:
        return str(error)
    return None
