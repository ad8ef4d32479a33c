"""Runs put together: the shards of a plan as one run of each machine, the lanes that shared a fleet's cases as one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import msgspec
from msgspec import structs

from ampbench.errors import UsageError
from ampbench.records.case import kind_of, of_kind
from ampbench.records.labels import few
from ampbench.records.run import SPREAD, Footer, Header, Shard
from ampbench.store.run_file import StoredRun, gathered, lacking, new_run_id, round_key


def lanes_together(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return runs, with lanes of one kind that shared the cases of a fleet as one run, in the place of the first.

    A case of a lane that was lost may have turns from two of them. Cases are in the order of their workloads.
    """
    together: dict[str, list[StoredRun]] = {}
    for place, run in enumerate(runs):
        fleet = run.header.fleet
        shared = fleet is not None and fleet.on == SPREAD
        key = f"{fleet.id} {kind_of(run.header.environment)}" if fleet and shared else str(place)
        together.setdefault(key, []).append(run)
    return [lanes[0] if len(lanes) == 1 else _united(lanes) for lanes in together.values()]


def _united(lanes: Sequence[StoredRun]) -> StoredRun:
    """Return what several lanes measured as one run, of all their names."""
    header, names = lanes[0].header, [run.header.fleet.lane for run in lanes if run.header.fleet is not None]
    name = " + ".join(names) if len(names) <= 3 else f"{names[0]} + {len(names) - 1:,} others"
    assert header.fleet is not None
    run = _joined(lanes, structs.replace(header, fleet=structs.replace(header.fleet, lane=name)))
    order = {source.name: place for place, source in enumerate(header.sources)}
    cases = sorted(run.cases.items(), key=lambda item: order.get(item[1].workload, len(order)))
    failures = dict(chain.from_iterable(lane.failures.items() for lane in lanes))
    done = {each.case_id for each in run.rounds}
    left = {case_id: failure for case_id, failure in failures.items() if failure.final or case_id not in done}
    run = replace(run, cases=dict(cases), failures=left, cut=any(lane.cut for lane in lanes))
    known = {round_key(each.case_id, each.round, each.control, each.confirmation) for each in run.rounds}
    return replace(run, lacks=lacking(run, known))


def _joined(runs: Sequence[StoredRun], header: Header) -> StoredRun:
    """Return the entries of runs as one run, with the first's of devices."""
    run = gathered(runs[0].path, header, chain.from_iterable(one.entries() for one in runs))
    return replace(run, found=runs[0].found)


def merged(shards: Sequence[StoredRun], command: list[str]) -> list[StoredRun]:
    """Return a run of the whole plan for each machine of `shards`; `command` is what asked for it.

    Machines that differ in nothing but their names are one. Raises `UsageError` for a run that is no shard or broke
    off, for shards of different plans, environments, code or networks, and for missing or double ones.
    """
    machines: list[list[StoredRun]] = []
    for run in shards:
        _require_complete(run)
        for members in machines:
            if not _difference(members[0].header, run.header):
                members.append(run)
                break
        else:
            machines.append([run])
    for members in machines:
        members.sort(key=lambda run: _shard(run).number)
        _require_whole(members, machines)
    return [_together(members, command) for members in machines]


def _require_complete(run: StoredRun) -> None:
    """Raise `UsageError` for a run that is no shard, or not whole."""
    if run.header.shard is None:
        raise UsageError(f"run {run.header.run} is no shard: ampbench run --shard I/N measures one")
    if run.cut or run.ended != "complete":
        raise UsageError(f"{_named(run)} broke off: ampbench run --resume {run.path} measures what is missing")
    if run.lost:
        raise UsageError(f"{_named(run)} {run.lost}: measure it anew")


def _require_whole(members: Sequence[StoredRun], machines: Sequence[Sequence[StoredRun]]) -> None:
    """Raise `UsageError` unless each case of the plan is in one of the `members`, and networks are the same.

    `machines` are all machines: a missing number among them differs in something.
    """
    first, count, cases = members[0], _shard(members[0]).count, _shard(members[0]).cases
    for run, other in pairwise(members):
        if _shard(run).number == _shard(other).number:
            raise UsageError(f"runs {run.header.run} and {other.header.run} are both {_part(run)}: give one of them")
    missing = sorted({*range(1, count + 1)} - {_shard(run).number for run in members})
    places = sorted(place for run in members for place in _shard(run).places)
    if len(places) < cases and missing:
        for other in chain.from_iterable(machines):
            if _shard(other).number in missing:
                why = _difference(first.header, other.header)
                raise UsageError(f"{_named(other)} does not belong to {_named(first)}: {why}")
        raise UsageError(f"{_named(first)} lacks the others: give {few(map(str, missing))} of {count}, too")
    if places != list(range(cases)):
        raise UsageError(
            f"{_named(first)} and the others were not shared out alike: runs were added to their results folder "
            "meanwhile, by whose times shards are balanced; measure them anew with another --results folder"
        )
    seen: dict[tuple[str, str], tuple[StoredRun, str]] = {}
    for run in members:
        for case_id, divergence in run.divergence.items():
            network = run.cases[case_id].network
            for what, digest in (("weights", divergence.weights_digest), ("inputs", divergence.inputs_digest)):
                other, known = seen.setdefault((network, what), (run, digest))
                if known != digest:
                    raise UsageError(
                        f"the {what} of {network} are others in {_named(run)} than in {_named(other)}: "
                        "its code or its random numbers differ; measure both anew"
                    )


def _difference(ours: Header, theirs: Header) -> str:
    """Return how two shards of one run differ; "": in nothing but the machine's name."""
    one, other = _common(ours), _common(theirs)
    apart = [name for name in one if one[name] != other[name]]
    simple = [name for name in apart if isinstance(one[name], str | int | None)]
    told = [f"{name} {one[name] or 'none'}, there {other[name] or 'none'}" for name in simple]
    if ours.environment.host == theirs.environment.host:  # another machine has other folders
        files = {source.name: source.module for source in ours.sources}
        both = [(files.get(source.name, source.module), source) for source in theirs.sources]
        told += [f"file of {of.name} {file}, there {of.module}" for file, of in both if file != of.module]
    return few(told or [f"they differ in the {name}" for name in apart])


def _common(header: Header) -> dict[str, Any]:
    """Return the common properties of shards of one run, by their names in a sentence."""
    shard, environment = header.shard, msgspec.to_builtins(of_kind(header.environment))
    assert shard is not None
    return {
        "number of shards": shard.count,
        "cases of the plan": [shard.plan, shard.cases],
        "selection": header.selection,
        # limits are the machine's, and the day's
        "settings": structs.replace(header.settings, memory_limit_bytes=None, max_seconds=None),
        "own precisions": header.precisions,
        "commit": header.commit,
        "power limit": [round(each.state.power_limit_watts or 0) for each in header.environment.devices if each.state],
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
        follows=None,
        shard=None,
        merged=[header.run for header in headers],
    )
    rounds, server = [], 0
    for run in members:
        rounds += [structs.replace(each, server=server + each.server) for each in run.rounds]
        server += 1 + max((each.server for each in run.rounds), default=-1)
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


def _part(run: StoredRun) -> str:
    return f"shard {_shard(run).number} of {_shard(run).count}"


def _named(run: StoredRun) -> str:
    return f"{_part(run)} (run {run.header.run})"
