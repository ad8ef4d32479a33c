"""Shards put together are the run that one machine would have measured, or are refused in one line."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ampbench.errors import UsageError
from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Settings, Shard
from ampbench.store import StoredRun, read_run, write_whole
from ampbench.store.folder import merged
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

NAMES = ("a", "b", "c", "d", "e")
PLACES = {1: [0, 3], 2: [1, 4], 3: [2]}
CASES = [make_case(workload=name) for name in NAMES]
SETTINGS = Settings(rounds=2)


def shard(number: int, **changes: object) -> Shard:
    return structs.replace(Shard(number=number, count=3, plan="p", cases=5, places=PLACES[number]), **changes)  # type: ignore[arg-type]


def measured(folder: Path, number: int, *, weights: str = "aa", host: str = "bench", **header: object) -> StoredRun:
    """Return a shard as it is read from its file."""
    cases: list[Case] = [CASES[place] for place in PLACES[number]]
    entries = [
        entry
        for case in cases
        for entry in (
            make_memory(case, 1000 + number),
            make_divergence(case, weights_digest=weights, output_rel_l2=number / 7),
            *(make_round(case, 1e-3 * number, round_, server=round_) for round_ in range(2)),
        )
    ]
    environment = structs.replace(make_header().environment, host=host)
    given = {"shard": shard(number), "settings": SETTINGS, "environment": environment}
    run = f"2026013{number}T120000Z-{host}-00000{number}"
    path = write_run(folder, cases, *entries, COMPLETE, **{"run": run, **given, **header})
    return read_run(path)


def shards(folder: Path) -> list[StoredRun]:
    return [measured(folder, number) for number in PLACES]


def without(stored: StoredRun, **changes: object) -> StoredRun:
    return replace(stored, header=structs.replace(stored.header, **changes))  # type: ignore[arg-type]


def test_the_run_has_every_case_in_the_plans_order_and_every_number_as_it_was(tmp_path: Path) -> None:
    parts = [measured(tmp_path, 1), measured(tmp_path, 2), measured(tmp_path, 3, host="other", label="last")]
    run = merged([parts[2], parts[0], parts[1]], ["ampbench", "merge"])
    assert [case.workload for case in run.cases.values()] == list(NAMES)
    for one in parts:
        for case_id in one.cases:
            assert run.memory[case_id] == one.memory[case_id]
            assert run.divergence[case_id] == one.divergence[case_id]
    assert [measured.server for measured in run.rounds] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5]  # no two shards share one
    assert run.header.merged == [one.header.run for one in parts]
    assert (run.header.shard, run.header.environment.host, run.header.label) == (None, "2 hosts", "")
    assert run.header.started_at == parts[0].header.started_at
    assert run.complete


def test_what_is_written_reads_back_as_the_same_run(tmp_path: Path) -> None:
    parts = shards(tmp_path / "shards")
    parts[0].failures[CASES[0].case_id] = Failure(
        case_id=CASES[0].case_id, stage="round", cause="exception", message="broken"
    )
    parts[0].skips[CASES[3].case_id] = Skip(case_id=CASES[3].case_id, reason="no loss")
    run = merged(parts, [])
    (path,) = write_whole([run], tmp_path / "results").values()
    again = read_run(path)
    assert again == replace(run, path=path)
    assert [entry.name for entry in (tmp_path / "results").iterdir()] == ["runs"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shard": None}, r"run \S+ is no shard: ampbench run --shard I/N measures one"),
        ({"settings": structs.replace(SETTINGS, seed=1)}, "does not belong to .*: they differ in the settings"),
        ({"shard": shard(2, plan="q")}, "does not belong to .*: they differ in the cases of the plan"),
        ({"shard": shard(2, count=4)}, "does not belong to .*: number of shards 3, there 4"),
        ({"shard": shard(2, places=[1, 3])}, "were not shared out alike: runs were added to their results folder"),
        ({"commit": "abc"}, "does not belong to .*: commit none, there abc"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    one, two, three = shards(tmp_path)
    with pytest.raises(UsageError, match=said):
        merged([one, without(two, **change), three], [])


def test_shards_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"shard 2 of 3 \(run \S+\) lacks the others: give 1, 3 of 3, too"):
        merged([measured(tmp_path, 2)], [])


def test_an_empty_shard_that_nothing_was_left_for_is_not_missed(tmp_path: Path) -> None:
    parts = [without(one, shard=structs.replace(one.header.shard, count=4)) for one in shards(tmp_path)]  # type: ignore[type-var]
    run = merged(parts, [])
    assert len(run.cases) == 5


def test_a_network_that_has_other_weights_in_another_shard_is_refused(tmp_path: Path) -> None:
    same = [make_case(workload="a"), make_case(workload="a", phase="training")]
    parts = []
    for number, case in enumerate(same, 1):
        header = {"shard": Shard(number=number, count=2, plan="p", cases=2, places=[number - 1]), "settings": SETTINGS}
        entries = [make_memory(case, 1), make_divergence(case, weights_digest=f"d{number}")]
        entries += [make_round(case, 1e-3, round_) for round_ in range(2)]
        run = f"2026013{number}T120000Z-bench-00000{number}"
        parts.append(read_run(write_run(tmp_path, [case], *entries, COMPLETE, run=run, **header)))
    with pytest.raises(UsageError, match=r"the weights of a\[\S+ differ between shard 2 of 2 \(run \S+\) and shard 1"):
        merged(parts, [])
