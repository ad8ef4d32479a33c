"""The results folder: which runs it holds, which one is meant, whether they are sound."""

from difflib import get_close_matches
from pathlib import Path

from ampbench.errors import StoreError, UnknownNameError, UsageError
from ampbench.store.reading import read_header, read_run

SUFFIX = ".jsonl"
_NAMES_OF_FILES = (SUFFIX, ".json", ".gz")
LATEST = "latest"
"""What the newest run of a folder that measured is called; one that only explains is named by its id."""


def list_runs(results: Path | str) -> list[Path]:
    """Return the run files of a results folder, the oldest first; none where there is no such folder."""
    return sorted((Path(results) / "runs").glob(f"*{SUFFIX}"), key=lambda path: path.stem)


def run_files(folder: Path) -> list[Path]:
    """Return the files of runs that measured in any folder, a results folder or one of run files, the oldest first.

    Raises `StoreError` where there is none.
    """
    holder = folder / "runs" if (folder / "runs").is_dir() else folder
    files = [file for file in sorted(holder.glob(f"*{SUFFIX}"), key=lambda file: file.stem) if measures(file)]
    if not files:
        raise StoreError(f"there is no run file in {holder}: measure with `ampbench run`, or give another folder")
    return files


def measures(file: Path) -> bool:
    """Return whether the run in `file` measured; so does one that cannot be read, for its reader to say why."""
    try:
        return not read_header(file).explains
    except StoreError:
        return True


def find_run(name: str, results: Path | str) -> Path:
    """Return the file of the run called `name`: an id, a unique prefix of one, its last part, `latest`, or a path.

    Raises `UnknownNameError` with the nearest ids for anything else, `UsageError` where several runs are meant.
    """
    if "/" in name or name.endswith(_NAMES_OF_FILES):
        if not Path(name).is_file():
            raise UsageError(f"there is no run file {name}")
        return Path(name)
    paths = {path.stem: path for path in list_runs(results)}
    if not paths:
        raise UsageError(
            f"there is no run in {Path(results) / 'runs'}: measure one with `ampbench run`, or give a path"
        )
    if name == LATEST:
        measured = next((path for path in reversed(paths.values()) if measures(path)), None)
        if measured is None:
            raise UsageError(f"no run in {Path(results) / 'runs'} has measured: do so with `ampbench run`")
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
    """Return every run file of a results folder with what is wrong with it; None: nothing (a cut is no damage)."""
    return [(path, _problem(path)) for path in list_runs(results)]


def _problem(path: Path) -> str | None:
    try:
        read_run(path, on_round=lambda _: None)
    except StoreError as error:
        return str(error)
    return None
