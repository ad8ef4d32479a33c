"""Searching cases for what to keep in fp32: what is planned and asked, what is stored at once, how a search goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from ampbench.errors import UsageError
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import StoredRun, read_run
from ampbench.studies.keep_fp32 import (
    STUDY,
    KeepAsked,
    KeepSearch,
    Limits,
    SearchSpace,
    Timing,
    Trial,
    Unit,
    kept_sets,
    searches,
    units_of,
)
from ampbench.studies.work import lacking
from tests.scripted_channel import CPU, Scripted, asked_in, got, machine
from tests.studies.working import resumed, studied

ENVIRONMENT = machine(CPU)
SPACE = SearchSpace(
    case_id="",
    units=[Unit(modules=[f"layer.{place}"], kind="Linear") for place in range(8)], containers=["", "layer"],
    limits=Limits(max_error=1e-2),
    weights_digest="ww", inputs_digest="ii",
)  # fmt: skip
PLANTED = frozenset({2, 5})
WANTED = KeepAsked(max_error=1e-2, max_gradient_error=1e-1, max_trials=40)


def network(instead: Callable[[Request], Reply | None] = lambda _: None) -> Scripted:
    """Return a channel whose network errs unless both planted modules are kept, or does `instead`."""
    return Scripted(lambda request: instead(request) or answer(request), ENVIRONMENT)


def kinds(channel: Scripted) -> list[str]:
    return [request.task for request in channel.asked]


def answer(request: Request) -> Reply:
    assert request.case is not None
    case_id = request.case.case_id
    if request.task == "space":
        return reply_with(structs.replace(SPACE, case_id=case_id, limits=asked_in(request)))
    if request.task == "timing":
        sets = [structs.replace(timed, samples=[[1e-3]] * 6, peak_bytes=1) for timed in asked_in(request).sets]
        return reply_with(Timing(sets=sets))
    kept = asked_in(request).kept
    missing = len(PLANTED - units_of(SPACE, kept))
    error = 1e-3 * (9 - len(units_of(SPACE, kept))) / 9
    gradient = 2e-2 if request.case.phase == "training" else None
    if missing:
        return reply_with(Trial(case_id=case_id, kept=kept, nonfinite=missing))
    return reply_with(Trial(case_id=case_id, kept=kept, output_rel_l2=error, grad_rel_l2=gradient))


def interrupt_at(kind: str, count: int) -> Callable[[Request], Reply | None]:
    """Return what interrupts the `count`th request of a kind."""
    seen = {"": 0}

    def instead(request: Request) -> Reply | None:
        seen[""] += request.task == kind
        if request.task == kind and seen[""] == count:
            raise KeyboardInterrupt
        return None

    return instead


def only(run: StoredRun) -> KeepSearch:
    (search,) = run.of(KeepSearch).values()
    return search


def test_what_is_found_is_minimal_and_timed_beside_none_and_all(tmp_path: Path) -> None:
    channel = network()
    run = studied(STUDY, tmp_path, channel, WANTED, phases=["inference"])
    search = only(run)
    assert (search.kept, search.minimal) == (["layer.2", "layer.5"], True)
    assert run.of(SearchSpace)[search.case_id].limits == Limits(max_error=1e-2)
    assert (kinds(channel)[0], kinds(channel)[-1]) == ("space", "timing")
    assert set(kinds(channel)[1:-1]) == {"trial"}
    assert search.timing is not None
    assert [each.kept for each in search.timing.sets] == [[], ["layer.2", "layer.5"], [""]]


def trials_of(run: StoredRun, batch: int = 0) -> list[Trial]:
    (trials,) = run.several_of(Trial).values()
    return [trial for trial in trials if trial.batch == batch]


def on_batch(batch: int, *kept: str, error: float) -> Callable[[Request], Reply | None]:
    """Return what lets a set err so much on a fresh batch."""

    def instead(request: Request) -> Reply | None:
        if request.task != "trial" or asked_in(request).batch != batch or asked_in(request).kept != list(kept):
            return None
        assert request.case is not None
        trial = Trial(case_id=request.case.case_id, kept=list(kept), output_rel_l2=error, batch=batch)
        return reply_with(trial)

    return instead


def test_what_is_found_is_tried_on_three_batches_that_the_search_did_not_see(tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, network(on_batch(2, "layer.2", "layer.5", error=9e-3)), WANTED, phases=["inference"])
    assert only(run).kept == ["layer.2", "layer.5"]
    assert [(trial.batch, trial.kept) for batch in (1, 2, 3) for trial in trials_of(run, batch)] == [
        (batch, ["layer.2", "layer.5"]) for batch in (1, 2, 3)
    ]
    assert only(run).unconfirmed == ""


def test_a_set_that_misses_the_budget_on_another_batch_gives_way_to_the_next(tmp_path: Path) -> None:
    run = studied(
        STUDY, tmp_path, network(on_batch(3, "layer.2", "layer.5", error=1.1e-2)), WANTED, phases=["inference"]
    )
    search = only(run)
    assert search.kept is not None
    assert search.minimal
    assert units_of(SPACE, search.kept) > PLANTED
    assert len(units_of(SPACE, search.kept)) == 3
    assert [trial.kept for trial in trials_of(run, 3)] == [["layer.2", "layer.5"], search.kept]
    (record,) = searches(run).values()
    assert [row.trial.kept for row in kept_sets(record) if row.refuted] == [["layer.2", "layer.5"]]


@pytest.mark.parametrize(
    ("precision", "phase", "bounded"),
    [("bf16_pure", "training", True), ("bf16_pure", "inference", False), ("bf16_autocast", "training", False)],
)
def test_updates_bound_what_trains_in_weights_stored_in_half(
    precision: str, phase: str, bounded: bool, tmp_path: Path
) -> None:
    def instead(request: Request) -> Reply | None:
        if request.task != "trial":
            return None
        reply = answer(request)
        kept = units_of(SPACE, asked_in(request).kept)
        arrives = 0.5 + len(kept & {2, 5, 7}) / 6 if asked_in(request).updates else None
        return reply_with(structs.replace(got("trial", reply), update_kept=arrives))

    channel = network(instead)
    wanted = structs.replace(WANTED, min_update_kept=0.98)
    run = studied(STUDY, tmp_path, channel, wanted, precisions=[precision], phases=[phase])
    search = only(run)
    assert run.of(SearchSpace)[search.case_id].limits.min_update_kept == (0.98 if bounded else None)
    assert {asked_in(request).updates for request in channel.asked if request.task == "trial"} == {bounded}
    assert search.kept == (["layer.2", "layer.5", "layer.7"] if bounded else ["layer.2", "layer.5"])


def test_the_space_and_each_trial_are_stored_before_the_next_is_asked_for(tmp_path: Path) -> None:
    stored: list[tuple[str, int]] = []

    def look(request: Request) -> Reply | None:
        run = read_run(next((tmp_path / "runs").glob("*.jsonl")))
        stored.append((request.task, len(run.of(SearchSpace)) + sum(map(len, run.several_of(Trial).values()))))
        return None

    studied(STUDY, tmp_path, network(look), WANTED)
    assert [count for _, count in stored] == list(range(len(stored)))


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 8, 12])
def test_no_more_sets_are_tried_than_asked_for(most: int, tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, network(), structs.replace(WANTED, max_trials=most))
    assert len(trials_of(run)) == min(most, 10)
    assert only(run).minimal == (most == 12)


@pytest.mark.parametrize(("kind", "count"), [("trial", 2), ("trial", 5), ("timing", 1)])
def test_an_interrupted_search_goes_on_where_it_was_and_ends_as_if_it_had_not_been(
    kind: str, count: int, tmp_path: Path
) -> None:
    whole = studied(STUDY, tmp_path / "whole", network(), WANTED)
    broken = studied(STUDY, tmp_path / "broken", network(interrupt_at(kind, count)), WANTED)
    left = [case.case_id for case in lacking(STUDY, broken)]
    assert (broken.ended, broken.of(KeepSearch), left) == ("interrupted", {}, list(broken.cases))
    again = network()
    ended = resumed(STUDY, broken, again)
    assert only(ended) == only(whole)
    assert ended.several_of(Trial) == whole.several_of(Trial)
    before, after = (sum(map(len, run.several_of(Trial).values())) for run in (broken, whole))
    assert len(again.asked) == 2 + after - before, "the space, to see that it is the same, what is left, and the timing"
    assert [footer.ended for footer in ended.footers] == ["interrupted", "complete"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"weights_digest": "changed"}, "weights"),
        ({"inputs_digest": "changed"}, "inputs"),
        ({"units": SPACE.units[1:]}, "modules"),
        ({"containers": [""]}, "modules"),
    ],
)
def test_a_search_of_another_network_than_it_began_with_is_not_gone_on_with(
    changes: dict[str, object], what: str, tmp_path: Path
) -> None:
    broken = studied(STUDY, tmp_path, network(interrupt_at("trial", 3)), WANTED)
    before = broken.several_of(Trial)

    def changed(request: Request) -> Reply | None:
        assert request.case is not None
        assert request.task == "space"
        return reply_with(structs.replace(SPACE, case_id=request.case.case_id, **changes))  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=f"cannot be resumed: the {what} (of mlp )?are others than it began with"):
        resumed(STUDY, broken, network(changed))
    assert read_run(broken.path).several_of(Trial) == before
