"""Which run files a report is of: those that measured, and those that only explain."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampbench import keywords
from ampbench.errors import StoreError
from ampbench.records.runs import LATEST, Header
from ampbench.store import BY_CASE, StoredRun, find_run, list_runs, measures, read_header, run_files


@dataclass(frozen=True, slots=True)
class Sources:
    """Run files by what they hold, each once: `measured` are shown as tables, `explaining` tell why.

    `found` are those that stand in a folder that was named: one of them that is damaged is left out. `doubts` say in a
    sentence each which files may be meant as well.
    """

    measured: list[Path] = field(default_factory=list)
    explaining: list[Path] = field(default_factory=list)
    found: frozenset[Path] = frozenset()
    doubts: list[str] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [*self.measured, *self.explaining]


def find_sources(sources: Sequence[str], results: Path) -> Sources:
    """Return the run files that `sources` name: ids, prefixes, `latest`, paths of files or of folders.

    Without any it is the latest of `results` that measured, and the runs that explain it: those that `explain` finds
    there. Where none has measured, it is the newest that explains, and those of its host and torch version.

    Raises `StoreError` for a folder without run files, `UsageError` for what names nothing.
    """
    if not sources:
        return _latest(results)
    paths: dict[Path, None] = {}
    listed: set[Path] = set()
    doubts: list[str] = []
    for source in sources:
        folder = Path(source).expanduser()
        if folder.is_dir():
            found = [path.resolve() for path in run_files(folder)]
            listed |= set(found)
        else:
            found = [find_run(source, results, doubts.append).resolve()]
        if not found:
            raise StoreError(f"there is no run file in {folder}: measure with `ampbench run`, or give another folder")
        paths |= dict.fromkeys(found)
    return replace(_sorted(paths), found=frozenset(listed), doubts=doubts)


def explain(measured: Header, explaining: Header) -> bool:
    """Return whether a run explains one that measured: same host, same torch version, and not older than it."""
    return _place(measured) == _place(explaining) and _started(explaining) >= _started(measured)


def assigned(sources: Sources) -> dict[Path, list[Path]]:
    """Return whose page each run that explains belongs on, by the files of those that measured.

    That is the newest of those that it explains; where there is none, it has a page of its own, and is a key itself.
    """
    headers = {path: read_header(path) for path in sources.measured if _is_sound(path)}
    pages: dict[Path, list[Path]] = {path: [] for path in sources.measured}
    for path in sources.explaining:
        own = read_header(path)
        fitting = [(_started(one), file) for file, one in headers.items() if explain(one, own)]
        if fitting:
            pages[max(fitting)[1]].append(path)
        else:
            pages[path] = []
    return pages


def matching(runs: Iterable[StoredRun], keyword: str) -> list[StoredRun]:
    """Return the runs that explain with the cases that match `keyword` alone, without those of which nothing is left.

    A probe of autocast's rules is of no case, and stays. The trainings of a workload, which are judged together, all
    stay where one of its cases matches.
    """
    if not keyword:
        return list(runs)
    runs_left = []
    for one in runs:
        kept = _kept(one, keyword)
        entries: dict[str, Any] = {
            kind: {case_id: found for case_id, found in getattr(one, kind).items() if case_id in kept}
            for kind in BY_CASE
        }
        runs_left.append(replace(one, **entries))
    return [one for one in runs_left if one.rules or one.ceilings or any(getattr(one, kind) for kind in BY_CASE)]


def _kept(run: StoredRun, keyword: str) -> set[str]:
    """Return the ids of the cases that match, and of those that were trained to be judged with them."""
    kept = {case_id for kind in BY_CASE for case_id in getattr(run, kind) if keywords.matches(keyword, case_id)}
    cases = run.cases
    groups = {(cases[one].group, cases[one].device) for one in kept if one in cases}
    return kept | {one for one in run.convergence if (cases[one].group, cases[one].device) in groups}


def _latest(results: Path) -> Sources:
    found = _sorted(list_runs(results))
    if not found.measured and not found.explaining:
        find_run(LATEST, results)  # says that there is none
    headers = {path: read_header(path) for path in found.explaining}
    if any(map(_is_sound, found.measured)) or not found.explaining:
        doubts: list[str] = []
        newest = find_run(LATEST, results, doubts.append)
        header = read_header(newest)
        return Sources([newest], [path for path, one in headers.items() if explain(header, one)], doubts=doubts)
    place = _place(headers[found.explaining[-1]])
    return Sources([], [path for path, one in headers.items() if _place(one) == place])


def _sorted(paths: Iterable[Path]) -> Sources:
    found = Sources()
    for path in paths:
        (found.measured if measures(path) else found.explaining).append(path)
    return found


def _is_sound(path: Path) -> bool:
    try:
        read_header(path)
    except StoreError:
        return False
    return True


def _place(header: Header) -> tuple[str, str]:
    return header.environment.host, header.environment.torch_version


def _started(header: Header) -> datetime:
    found = datetime.fromisoformat(header.started_at)  # reading a header has checked it
    return found if found.tzinfo else found.replace(tzinfo=UTC)
