"""The results folder: list, find and check its runs, and merge runs."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.case import kind_of, of_kind
from ampbench.records.kinds import TRAINING, deed_of
from ampbench.records.labels import few
from ampbench.records.run import COMPRESSED, LATEST, SPREAD, SUFFIX, Footer, Header, Shard, is_path
from ampbench.store.run_file import (
    StoredRun,
    gathered,
    new_run_id,
    read_header,
    read_run,
    run_id,
)

R = TypeVar("R", Path, StoredRun)
Doubt = Callable[[str], object]
"""Receives sentences on runs that were left out of a search."""


def list_runs(results: Path | str) -> list[Path]:
    """Return the run files of a results folder, the oldest by id first; none without such a folder.

    A plain file comes before a compressed one of the same run. Raises `StoreError` for an unreadable folder.
    """
    return _runs_in(Path(results) / "runs")


def run_files(folder: Path, *, measuring: bool = False) -> list[Path]:
    """Return the run files of a results folder or a folder of run files; `measuring`: only runs that measured.

    Shards of a merged run in the folder are left out.
    """
    files = _runs_in(folder / "runs" if (folder / "runs").is_dir() else folder)
    merged = {run for runs in merged_in(files).values() for run in runs}
    return [file for file in files if run_id(file) not in merged and (not measuring or measures(file))]


def _header_of(file: Path) -> Header | None:
    """Return the header of a run file; None for a damaged one."""
    with contextlib.suppress(StoreError):
        return read_header(file)
    return None


def merged_in(files: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the files of merged runs, each with the ids of the runs it was merged from."""
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
    """Return whether the run in `file` measured; True for an unreadable one, so that its reader reports it."""
    header = _header_of(file)
    return header is None or not header.explains


def trainings_beside(stored: StoredRun) -> list[StoredRun]:
    """Return the readable studies of trainings in a run's folder, with its host and torch, oldest first."""
    ours = stored.header.environment

    def is_its(header: Header) -> bool:
        theirs = header.environment
        return header.explains == TRAINING and (theirs.host, theirs.torch_version) == (ours.host, ours.torch_version)

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
        raise UsageError(f"there is no results folder {results}: `ampbench run` makes one, --results names another")


def check_runs(results: Path | str) -> None:
    """Raise `NothingToRunError` for a results folder without a run, `UsageError` if there is no such folder."""
    check_folder(results)
    if not list_runs(results):
        raise NothingToRunError(f"there is no run in {Path(results) / 'runs'}: `ampbench run` makes one")


def find_run(name: str, results: Path | str, doubt: Doubt = lambda _: None) -> Path:
    """Return the file of the run called `name`: an id, its beginning or its last part, `latest`, or a path.

    `latest` is the last run that measured, by its id; `doubt` receives unreadable files that may be later. Raises
    `UnknownNameError` with the nearest ids for an unknown name, `UsageError` for a path without a run file and for a
    name of several runs, and the errors of `check_runs`.
    """
    if is_path(name) or (name and Path(name, "runs").is_dir()):
        path = Path(name)
        if path.is_dir():
            raise UsageError(f"{name} is a folder, not a run: name one of its runs and say --results {name}")
        if not path.is_file():
            raise UsageError(f"there is no run file {name}")
        return path
    check_runs(results)
    paths = {run_id(path): path for path in list_runs(results)}
    if name == LATEST:
        return _latest(list(paths.values()), doubt)
    if name in paths:
        return paths[name]
    matching = [run for run in paths if name and (run.startswith(name) or run.rpartition("-")[2].startswith(name))]
    if not matching:
        newest = list(paths)[-5:]
        some = f"the last 5 of {len(paths):,} are {', '.join(newest)}; ampbench list runs lists all"
        near = get_close_matches(name, [*paths, LATEST], n=3, cutoff=0.5)
        raise UnknownNameError("run", name, near or newest, instead=some if len(paths) > len(newest) else "")
    if len(matching) > 1:
        some = ", ".join(matching[-5:])
        raise UsageError(f"{len(matching)} runs begin or end with {name!r}: say more of one, such as {some}")
    return paths[matching[0]]


def find_runs(name: str, results: Path | str, doubt: Doubt = lambda _: None) -> list[Path]:
    """Return the file of the run called `name`, as `find_run` does, or all files of a fleet, by its id or as `latest`.

    One run of a fleet needs a longer name than the fleet's id.
    """
    members = [] if is_path(name) else _of_fleet(name, results)
    files = members if len(members) > 1 else [find_run(name, results, doubt)]
    fleet = read_header(files[0]).fleet if name == LATEST else None
    return files if fleet is None else find_runs(fleet.id, results)


def find_fleet(name: str, results: Path | str) -> list[Path]:
    """Return the files of the runs of the fleet called `name`, its id or one of its runs.

    Raises `UsageError` for a run of no fleet, and the errors of `find_run`.
    """
    path = find_runs(name, results)[0]
    fleet = read_header(path).fleet
    if fleet is None:
        raise UsageError(f"run {run_id(path)} is no fleet's: leave --ray out to go on with it here")
    return _of_fleet(fleet.id, path.parent.parent)


def _of_fleet(id: str, results: Path | str) -> list[Path]:
    return [path for path in list_runs(results) if run_id(path).endswith(f"-{id}")]


def _latest(paths: Sequence[Path], doubt: Doubt) -> Path:
    """Return the last file, of `paths` sorted by id, of a run that measured."""
    measured: Path | None = None
    unreadable: list[str] = []  # and later than all that measured
    for path in paths:
        try:
            header = read_header(path)
        except StoreError as error:
            unreadable.append(str(error))
            continue
        if not header.explains:
            measured = path
            unreadable.clear()
    if measured is None:
        if unreadable:
            raise StoreError(f"no run can be read: {unreadable[-1]}")
        raise NothingToRunError(f"no run in {paths[0].parent} has measured: do so with `ampbench run`")
    for problem in reversed(unreadable):
        doubt(f"latest leaves out what cannot be read: {problem}")
    return measured


def check_results(results: Path | str) -> list[tuple[Path, str | None]]:
    """Return every run file in a folder and below with its damage (None: sound, or cut), and unreadable folders."""
    problems: dict[Path, str | None] = {}

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = f"cannot read {error.filename}: {error.strerror}"

    files: list[Path] = []
    for holder, folders, names in os.walk(results, onerror=unreadable):
        folders.sort()
        files += _sorted(Path(holder) / name for name in [*names, *folders])
    if problem := _no_holder(Path(results) / "runs"):
        problems[Path(results) / "runs"] = problem
    for file in files:
        problems[file] = None
        try:
            read_run(file)
        except StoreError as error:
            problems[file] = str(error)
    return [*problems.items()]


def _runs_in(holder: Path) -> list[Path]:
    """Return the run files in a folder by id, a plain file instead of a compressed one of the same run.

    Empty without such a folder; `StoreError` if it is no folder, or cannot be read.
    """
    if problem := _no_holder(holder):
        raise StoreError(problem)
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
    """Return the problem if the folder of run files is no folder; else ""."""
    return f"cannot read {holder}: it is no folder" if holder.exists() and not holder.is_dir() else ""


def lanes_together(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Return runs, with lanes of one kind that shared a fleet's cases united, in the place of the first lane.

    A case of a lost lane may have rounds from two lanes. Cases are in the order of their workloads.
    """
    return [lanes[0] if len(lanes) == 1 else _united(lanes) for lanes in shared_lanes(runs)]


def read_together(files: Iterable[Path]) -> Iterator[StoredRun]:
    """Return the runs in files, each read when it is taken, with lanes united as `lanes_together` does."""
    return chain.from_iterable(lanes_together(map(read_run, lanes)) for lanes in shared_lanes(files))


def read_found(name: str, results: Path | str, doubt: Doubt = lambda _: None) -> StoredRun:
    """Return the run called `name`, as `find_run` does, or the lanes of a fleet of one kind as one run."""
    runs = list(read_together(find_runs(name, results, doubt)))
    return runs[0] if len(runs) == 1 else read_run(find_run(name, results, doubt))


def shared_lanes(items: Iterable[R]) -> list[list[R]]:
    """Return files or runs, those of lanes of one kind that shared a fleet's cases in one list."""
    together: dict[str, list[R]] = {}
    for place, item in enumerate(items):
        header = item.header if isinstance(item, StoredRun) else _header_of(item)
        fleet = header and header.fleet
        key = f"{fleet.id} {kind_of(header.environment)}" if header and fleet and fleet.on == SPREAD else str(place)
        together.setdefault(key, []).append(item)
    return list(together.values())


def _united(lanes: Sequence[StoredRun]) -> StoredRun:
    """Return the measurements of several lanes as one run, with all their names."""
    header, names = lanes[0].header, [run.header.fleet.lane for run in lanes if run.header.fleet is not None]
    name = " + ".join(names) if len(names) <= 3 else f"{names[0]} + {len(names) - 1:,} others"
    assert header.fleet is not None
    run = _joined(lanes, structs.replace(header, fleet=structs.replace(header.fleet, lane=name)))
    order = {source.name: place for place, source in enumerate(header.sources)}
    cases = sorted(run.cases.items(), key=lambda item: order.get(item[1].workload, len(order)))
    failures = dict(chain.from_iterable(lane.failures.items() for lane in lanes))
    done = {measured.case_id for measured in run.rounds}
    left = {case_id: failure for case_id, failure in failures.items() if failure.final or case_id not in done}
    return replace(run, cases=dict(cases), failures=left, cut=any(lane.cut for lane in lanes))


def _joined(runs: Sequence[StoredRun], header: Header) -> StoredRun:
    """Return the entries of runs as one run, with the device entries of the first."""
    run = gathered(runs[0].path, header, chain.from_iterable(run.entries() for run in runs))
    return replace(run, found=runs[0].found)


def merged(shards: Sequence[StoredRun], command: list[str]) -> StoredRun:
    """Return the run of the whole plan that `shards` measured; `command` is the merging command.

    Raises `UsageError` for a run that is no shard or broke off, for shards of different plans, environments, code or
    networks, and for missing or double ones. Machines may differ in their names.
    """
    for run in shards:
        if run.header.shard is None:
            raise UsageError(f"run {run.header.run} is no shard: ampbench run --shard I/N measures one")
        if run.cut or run.ended != "complete":
            raise UsageError(f"{_named(run)} broke off: ampbench run --resume {run.path} measures the rest")
    first, *others = members = sorted(shards, key=lambda run: _shard(run).number)
    ours = _common(first.header)
    for run in others:
        theirs = _common(run.header)
        why = few(
            f"{name} {known or 'none'}, there {theirs[name] or 'none'}"
            if isinstance(known, str | int | None)
            else f"they differ in the {name}"
            for name, known in ours.items()
            if known != theirs[name]
        )
        if why:
            raise UsageError(f"{_named(run)} does not belong to {_named(first)}: {why}")
    _require_whole(members)
    return _together(members, command)


def _require_whole(members: Sequence[StoredRun]) -> None:
    """Raise `UsageError` unless each case of the plan is in one of the `members`, and networks are the same."""
    first, count, cases = members[0], _shard(members[0]).count, _shard(members[0]).cases
    for run, following in pairwise(members):
        if _shard(run).number == _shard(following).number:
            raise UsageError(f"run {following.header.run} is {_named(run)} again: give one of them")
    missing = sorted({*range(1, count + 1)} - {_shard(run).number for run in members})
    places = sorted(place for run in members for place in _shard(run).places)
    if len(places) < cases and missing:
        raise UsageError(f"{_named(first)} lacks the others: give {few(map(str, missing))} of {count}, too")
    if places != list(range(cases)):
        raise UsageError(
            f"{_named(first)} and the others were not shared out alike: runs were added to their results folder "
            "meanwhile, and its times balance shards; measure them anew with another --results folder"
        )
    digests: dict[tuple[str, str], tuple[StoredRun, str]] = {}
    for run in members:
        for case_id, divergence in run.divergence.items():
            network = run.cases[case_id].network
            for part, digest in (("weights", divergence.weights_digest), ("inputs", divergence.inputs_digest)):
                following, known = digests.setdefault((network, part), (run, digest))
                if known != digest:
                    raise UsageError(
                        f"the {part} of {network} differ between {_named(run)} and {_named(following)}: "
                        "another code or other random numbers; measure both anew"
                    )


def _common(header: Header) -> dict[str, Any]:
    """Return the common properties of shards of one run by their names in a sentence; hosts may differ."""
    shard, environment = header.shard, msgspec.to_builtins(of_kind(header.environment))
    assert shard is not None
    return {
        "number of shards": shard.count,
        "cases of the plan": [shard.plan, shard.cases],
        "selection": header.selection,
        # memory limits depend on the machine
        "settings": structs.replace(header.settings, memory_limit_bytes=None),
        "own precisions": header.precisions,
        "commit": header.commit,
        "power limit": [
            round(device.state.power_limit_watts or 0) for device in header.environment.devices if device.state
        ],
        **{name.removesuffix("_version").replace("_", " "): value for name, value in environment.items()},
    }


def _together(members: Sequence[StoredRun], command: list[str]) -> StoredRun:
    """Return the shards of one machine as one run."""
    headers = [run.header for run in members]
    first = headers[0]
    hosts = list(dict.fromkeys(header.environment.host for header in headers))
    host = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    labels = {header.label for header in headers}
    header = structs.replace(
        first,
        run=new_run_id(host),
        started_at=min(header.started_at for header in headers),
        label=first.label if len(labels) == 1 else "",
        command=command,
        sources=list(dict.fromkeys(source for header in headers for source in header.sources)),
        environment=structs.replace(first.environment, host=host),
        shard=None,
        merged=[header.run for header in headers],
    )
    rounds, server = [], 0
    for run in members:
        rounds += [structs.replace(measured, server=server + measured.server) for measured in run.rounds]
        server += 1 + max((measured.server for measured in run.rounds), default=-1)
    whole = _joined(members, header)
    placed = sorted(pair for run in members for pair in zip(_shard(run).places, run.cases, strict=True))
    finished = max(footer.finished_at for footer in whole.footers)
    return replace(
        whole,
        cases={case_id: whole.cases[case_id] for _, case_id in placed},
        rounds=rounds,
        footers=[Footer(ended="complete", finished_at=finished)],
    )


def _shard(run: StoredRun) -> Shard:
    assert run.header.shard is not None
    return run.header.shard


def _named(run: StoredRun) -> str:
    return f"shard {_shard(run).number} of {_shard(run).count} (run {run.header.run})"
