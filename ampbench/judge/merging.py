"""The shards of a plan put together: one run for each machine, as if it had measured all by itself."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ampbench.errors import UsageError
from ampbench.judge.pairing import EnvironmentDifferences
from ampbench.records.case import VISIBLE_DEVICES, kind_of
from ampbench.records.labels import few
from ampbench.records.run import SPREAD, Footer, Header, Shard
from ampbench.store import StoredRun, new_run_id


def merged(shards: Sequence[StoredRun], command: list[str]) -> list[StoredRun]:
    """Return a run of the whole plan for each machine that `shards` were measured on; `command` is what asked for it.

    Machines of one kind, which differ in nothing but their names, are one. Raises `UsageError` for what is no shard or
    broke off, for shards of another plan, environment, code or networks than the others, and where some are missing or
    there twice.
    """
    machines: list[list[StoredRun]] = []
    for one in shards:
        _check(one)
        fitting = (members for members in machines if not _difference(members[0].header, one.header))
        members = next(fitting, None)
        if members is None:
            machines.append([one])
        else:
            members.append(one)
    found = [_whole(sorted(members, key=_number), machines) for members in machines]
    return [_together(members, command) for members in found]


def lanes_together(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return runs, those of lanes of one kind that shared the cases of a fleet as one, where the first of them was.

    A case that a lane had begun before it was lost has its turns from two of them. Cases are in the order of their
    workloads, as the lanes were given them.
    """
    together: dict[tuple[str, ...], list[StoredRun]] = {}
    for place, run in enumerate(runs):
        fleet = run.header.fleet
        shared = fleet is not None and fleet.on == SPREAD
        key = (fleet.id, kind_of(run.header.environment)) if fleet is not None and shared else (str(place),)
        together.setdefault(key, []).append(run)
    return [members[0] if len(members) == 1 else _united(members) for members in together.values()]


def _united(lanes: Sequence[StoredRun]) -> StoredRun:
    """Return what several lanes measured as one run, of all their names."""
    first, names = lanes[0], [run.header.fleet.lane for run in lanes if run.header.fleet is not None]
    name = " + ".join(names) if len(names) <= 3 else f"{names[0]} + {len(names) - 1:,} others"
    order = {source.name: place for place, source in enumerate(first.header.sources)}
    by_case: dict[str, Any] = {
        name: {case_id: entry for run in lanes for case_id, entry in getattr(run, name).items()}
        for name in ("cases", "memory", "divergence", "failures", "skips")
    }
    cases = sorted(by_case["cases"].values(), key=lambda case: order.get(case.workload, len(order)))
    rounds = [each for run in lanes for each in run.rounds]
    done = {each.case_id for each in rounds}
    by_case["cases"] = {case.case_id: case for case in cases}
    by_case["failures"] = {
        case_id: failure for case_id, failure in by_case["failures"].items() if failure.final or case_id not in done
    }
    assert first.header.fleet is not None
    return replace(
        first,
        header=replace(first.header, fleet=replace(first.header.fleet, lane=name)),
        rounds=rounds,
        footers=[footer for run in lanes for footer in run.footers],
        cut=any(run.cut for run in lanes),
        **by_case,
    )


def _check(stored: StoredRun) -> None:
    """Raise `UsageError` for a run that is no shard, or not all that it should be."""
    header = stored.header
    if header.shard is None:
        raise UsageError(f"run {header.run} is no shard: ampbench run --shard I/N measures one")
    if stored.cut or stored.ended != "complete":
        raise UsageError(f"{_named(stored)} broke off: ampbench run --resume {stored.path} measures what is missing")
    if stored.lost:
        raise UsageError(f"{_named(stored)} {stored.lost}: measure it anew")


def _whole(members: list[StoredRun], machines: Sequence[Sequence[StoredRun]]) -> list[StoredRun]:
    """Return the shards of one machine, in order; `UsageError` unless each case of the plan is in one of them.

    `machines` are all that there are: what fits in number differs in something.
    """
    first, shards = members[0], [_shard(one) for one in members]
    count, cases = shards[0].count, shards[0].cases
    by_number: dict[int, StoredRun] = {}
    for one in members:
        other = by_number.setdefault(_number(one), one)
        if other is not one:
            raise UsageError(f"runs {other.header.run} and {one.header.run} are both {_part(one)}: give one of them")
    places = [place for shard in shards for place in shard.places]
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if len(places) < cases and missing:
        others = (one for others in machines for one in others if _number(one) in missing)
        misfit = next(others, None)
        if misfit is not None:
            why = _difference(first.header, misfit.header)
            raise UsageError(f"{_named(misfit)} does not belong to {_named(first)}: {why}")
        numbers = few([str(number) for number in missing])
        raise UsageError(f"{_named(first)} lacks the others: give {numbers} of {count}, too")
    if sorted(places) != list(range(cases)):
        raise UsageError(
            f"{_named(first)} and the others were not shared out alike: runs were added to their results folder "
            "meanwhile, by whose times shards are balanced; measure them anew with another --results folder"
        )
    _check_networks(members)
    return members


def _check_networks(members: Sequence[StoredRun]) -> None:
    """Raise `UsageError` where two shards measured a network with other weights or inputs."""
    seen: dict[tuple[str, str], tuple[StoredRun, str]] = {}
    for one in members:
        for case_id, found in one.divergence.items():
            case = one.cases[case_id]
            for what, digest in (("weights", found.weights_digest), ("inputs", found.inputs_digest)):
                other, known = seen.setdefault((case.network, what), (one, digest))
                if known != digest:
                    raise UsageError(
                        f"the {what} of {case.network} are others in {_named(one)} than in {_named(other)}: "
                        "its code or its random numbers differ; measure both anew"
                    )


def _difference(ours: Header, theirs: Header) -> str:
    """Return in what two shards differ that were measured for one run; "": in nothing but the machine's name."""
    one, other = _plan(ours), _plan(theirs)
    for name, value in one.items():
        if value != other[name]:
            return f"they differ in the {name}"
    devices = {device.type: None for device in ours.environment.devices if device.available}
    found = EnvironmentDifferences(ours, theirs, devices=devices, settings={}).found
    apart = {"host", *VISIBLE_DEVICES}
    told = [f"{each.name} {each.baseline}, there {each.candidate}" for each in found if each.name not in apart]
    return few(told, 3)


def _plan(header: Header) -> dict[str, object]:
    """Return what shards of one run have in common by what was typed, by its name in a sentence."""
    shard, settings = header.shard, header.settings
    assert shard is not None
    own = replace(settings, memory_limit_bytes=None, max_seconds=None)  # of the machine, and of the day
    return {
        "number of shards": shard.count,
        "cases of the plan": (shard.plan, shard.cases),
        "selection": header.selection,
        "settings": own,
        "own precisions": header.precisions,
    }


def _together(members: Sequence[StoredRun], command: list[str]) -> StoredRun:
    """Return the run that the shards of one machine are."""
    first = members[0]
    hosts = list(dict.fromkeys(one.header.environment.host for one in members))
    host = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    labels = list(dict.fromkeys(one.header.label for one in members))
    run = new_run_id(host, datetime.now(UTC))
    order = {place: case for one in members for place, case in zip(_shard(one).places, one.cases, strict=True)}
    cases = {case_id: case for one in members for case_id, case in one.cases.items()}
    header = replace(
        first.header,
        run=run,
        started_at=min(one.header.started_at for one in members),
        label=labels[0] if len(labels) == 1 else "",
        command=command,
        sources=list(dict.fromkeys(source for one in members for source in one.header.sources)),
        environment=replace(first.header.environment, host=host),
        follows=None,
        shard=None,
        merged=[one.header.run for one in members],
    )
    rounds, server = [], 0
    for one in members:
        rounds += [replace(each, server=server + each.server) for each in one.rounds]
        server += 1 + max((each.server for each in one.rounds), default=-1)
    finished = max(footer.finished_at for one in members for footer in one.footers)
    by_case: dict[str, Any] = {
        name: {case_id: entry for one in members for case_id, entry in getattr(one, name).items()}
        for name in ("memory", "divergence", "failures", "skips")
    }
    return StoredRun(
        path=first.path,
        header=header,
        cases={order[place]: cases[order[place]] for place in sorted(order)},
        rounds=rounds,
        found=first.found,
        footers=[Footer(ended="complete", finished_at=finished)],
        **by_case,
    )


def _shard(stored: StoredRun) -> Shard:
    assert stored.header.shard is not None
    return stored.header.shard


def _number(stored: StoredRun) -> int:
    return _shard(stored).number


def _part(stored: StoredRun) -> str:
    return f"shard {_number(stored)} of {_shard(stored).count}"


def _named(stored: StoredRun) -> str:
    return f"{_part(stored)} (run {stored.header.run})"
