"""Searching cases for what to keep in fp32: what is planned and asked, what is stored at once, how a search goes on."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from ampbench.drive.planning import PlannedCase
from ampbench.drive.session import check_same
from ampbench.errors import UsageError
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import KEEP_FP32
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
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
from ampbench.studies.work import prepared as prepare
from tests.scripted_channel import CPU, Scripted, asked_in, got, machine
from tests.stored_runs import make_header
from tests.studies.working import work

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


def killed(stage: str, times: int = 2) -> Callable[[Request], Reply | None]:
    """Return what kills the worker, so many times, in a request of the kind `stage`."""
    left = ["one"] * times

    def instead(request: Request) -> Reply | None:
        assert request.case is not None
        if request.task != stage or not left:
            return None
        left.pop()
        failure = Failure(case_id=request.case.case_id, stage=stage, cause="killed", message="by SIGKILL")
        return Reply(failure=failure)

    return instead


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


def searched(
    results: Path,
    channel: Scripted,
    wanted: KeepAsked = WANTED,
    watch: Callable[[PlannedCase, Entry | Failure | Skip | None], None] = lambda *_: None,
    **selected: list[str],
) -> StoredRun:
    """Return the run that searching what is selected leaves."""
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))  # type: ignore[arg-type]
    with prepare(STUDY, selection, Settings(), wanted, open_channel=lambda: channel) as prepared:
        header = make_header(
            explains=KEEP_FP32, environment=ENVIRONMENT, selection=prepared.selection, asked=msgspec.to_builtins(wanted)
        )
        with RunWriter.create(results, header, [planned.case for planned in prepared.plan]) as writer:
            work(STUDY, prepared, wanted, writer, watch)
    return read_run(writer.path)


def resumed(run: StoredRun, channel: Scripted) -> StoredRun:
    """Return what a run becomes when it is gone on with."""
    writer, begun = RunWriter.reopen(run.path)
    with (
        writer,
        prepare(
            STUDY,
            begun.header.selection,
            begun.header.settings,
            begun.asked,
            begun,
            open_channel=lambda: channel,
        ) as prepared,
    ):
        work(STUDY, prepared, begun.asked, writer, begun=begun)
    return read_run(run.path)


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


def test_unless_told_otherwise_training_in_the_devices_own_autocast_dtype_is_searched(tmp_path: Path) -> None:
    run = searched(tmp_path, network())
    assert [(case.precision, case.phase, case.path) for case in run.cases.values()] == [
        ("bf16_autocast", "training", "eager")
    ]


def test_what_is_found_is_minimal_and_timed_beside_none_and_all(tmp_path: Path) -> None:
    channel = network()
    run = searched(tmp_path, channel, phases=["inference"])
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
    run = searched(tmp_path, network(on_batch(2, "layer.2", "layer.5", error=9e-3)), phases=["inference"])
    assert only(run).kept == ["layer.2", "layer.5"]
    assert [(trial.batch, trial.kept) for batch in (1, 2, 3) for trial in trials_of(run, batch)] == [
        (batch, ["layer.2", "layer.5"]) for batch in (1, 2, 3)
    ]
    assert only(run).unconfirmed == ""


def test_a_set_that_misses_the_budget_on_another_batch_gives_way_to_the_next(tmp_path: Path) -> None:
    run = searched(tmp_path, network(on_batch(3, "layer.2", "layer.5", error=1.1e-2)), phases=["inference"])
    search = only(run)
    assert search.kept is not None
    assert search.minimal
    assert units_of(SPACE, search.kept) > PLANTED
    assert len(units_of(SPACE, search.kept)) == 3
    assert [trial.kept for trial in trials_of(run, 3)] == [["layer.2", "layer.5"], search.kept]
    (record,) = searches(run).values()
    assert [row.trial.kept for row in kept_sets(record) if row.refuted] == [["layer.2", "layer.5"]]


def test_where_every_set_fails_on_another_batch_none_is_found(tmp_path: Path) -> None:
    def instead(request: Request) -> Reply | None:
        if request.task != "trial" or not asked_in(request).batch:
            return None
        assert request.case is not None
        return reply_with(Trial(case_id=request.case.case_id, kept=asked_in(request).kept, output_rel_l2=0.5, batch=1))

    run = searched(tmp_path, network(instead), structs.replace(WANTED, max_trials=12), phases=["inference"])
    assert only(run) == KeepSearch(case_id=only(run).case_id, kept=None)
    assert len(trials_of(run)) <= 12


def test_without_another_batch_what_is_found_is_told_not_to_be_confirmed(tmp_path: Path) -> None:
    def instead(request: Request) -> Reply | None:
        assert request.case is not None
        skip = Skip(case_id=request.case.case_id, reason="there is one batch")
        return Reply(skip=skip) if request.task == "trial" and asked_in(request).batch else None

    search = only(searched(tmp_path, network(instead)))
    assert (search.kept, search.unconfirmed) == (["layer.2", "layer.5"], "there is one batch")


def test_a_resumed_search_refutes_the_same_sets(tmp_path: Path) -> None:
    fails = on_batch(1, "layer.2", "layer.5", error=1.1e-2)
    whole = only(searched(tmp_path / "whole", network(fails), phases=["inference"]))
    broken = interrupt_at("trial", 8)
    failing = network(lambda request: broken(request) or fails(request))
    run = searched(tmp_path / "broken", failing, phases=["inference"])
    assert only(resumed(run, network(fails))) == whole


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
    run = searched(tmp_path, channel, wanted, precisions=[precision], phases=[phase])
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

    searched(tmp_path, network(look))
    assert [count for _, count in stored] == list(range(len(stored)))


def test_trials_are_numbered_and_what_is_wanted_is_stored_with_the_space(tmp_path: Path) -> None:
    run = searched(tmp_path, network())
    (trials,) = run.several_of(Trial).values()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len({(trial.batch, *trial.kept) for trial in trials}) == len(trials)
    assert run.asked == WANTED


def test_the_trials_of_a_case_share_a_worker_and_the_weighing_has_its_own(tmp_path: Path) -> None:
    channel = network()
    searched(tmp_path, channel, phases=["inference", "training"])
    fresh = [request.fresh for request in channel.asked]
    assert fresh == [request.task in ("space", "timing") for request in channel.asked]


def test_gradients_are_bounded_in_training_only(tmp_path: Path) -> None:
    run = searched(
        tmp_path, network(), structs.replace(WANTED, max_gradient_error=1e-2), phases=["inference", "training"]
    )
    inference, training = (run.of(KeepSearch)[case_id] for case_id in run.cases)
    assert (inference.kept, training.kept) == (["layer.2", "layer.5"], None)
    limits = [run.of(SearchSpace)[case_id].limits.max_gradient_error for case_id in run.cases]
    assert limits == [None, 1e-2]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 8, 12])
def test_no_more_sets_are_tried_than_asked_for(most: int, tmp_path: Path) -> None:
    run = searched(tmp_path, network(), structs.replace(WANTED, max_trials=most))
    assert len(trials_of(run)) == min(most, 10)
    assert only(run).minimal == (most == 12)


def test_a_weighing_that_fails_loses_nothing_that_was_found(tmp_path: Path) -> None:
    def failing(request: Request) -> Reply | None:
        if request.task != "timing" or request.case is None:
            return None
        message = "no room"
        return Reply(
            failure=Failure(case_id=request.case.case_id, stage="timing", cause="out of memory", message=message)
        )

    search = only(searched(tmp_path, network(failing)))
    assert (search.kept, search.timing) == (["layer.2", "layer.5"], None)
    assert search.untimed == "out of memory: no room"


def test_a_worker_that_is_killed_in_the_weighing_loses_nothing_and_is_replaced(tmp_path: Path) -> None:
    whole = searched(tmp_path / "whole", network(), phases=["inference", "training"])
    channel = network(killed("timing"))
    run = searched(tmp_path / "killed", channel, phases=["inference", "training"])
    first, second = run.of(KeepSearch).values()
    assert first.untimed == "killed: by SIGKILL"
    before = whole.of(KeepSearch)[first.case_id]
    assert structs.replace(first, untimed="", timing=before.timing) == before
    assert second == whole.of(KeepSearch)[second.case_id]
    assert (run.failures, run.ended) == ({}, "complete")
    assert channel.closed == 2 + 2, "the killed ones before anything else is asked, as each at the end"


def test_sets_that_no_step_runs_with_are_not_weighed(tmp_path: Path) -> None:
    def refusing(request: Request) -> Reply | None:
        if request.task == "trial" and request.case is not None and asked_in(request).kept == []:
            return reply_with(Trial(case_id=request.case.case_id, error="RuntimeError: mixed dtypes"))
        return None

    search = only(searched(tmp_path, network(refusing)))
    assert search.timing is not None
    assert [] not in [one.kept for one in search.timing.sets]
    assert search.kept == ["layer.2", "layer.5"]


@pytest.mark.parametrize(("kind", "count"), [("trial", 2), ("trial", 5), ("timing", 1)])
def test_an_interrupted_search_goes_on_where_it_was_and_ends_as_if_it_had_not_been(
    kind: str, count: int, tmp_path: Path
) -> None:
    whole = searched(tmp_path / "whole", network())
    broken = searched(tmp_path / "broken", network(interrupt_at(kind, count)))
    left = [case.case_id for case in lacking(STUDY, broken)]
    assert (broken.ended, broken.of(KeepSearch), left) == ("interrupted", {}, list(broken.cases))
    again = network()
    ended = resumed(broken, again)
    assert only(ended) == only(whole)
    assert ended.several_of(Trial) == whole.several_of(Trial)
    before, after = (sum(map(len, run.several_of(Trial).values())) for run in (broken, whole))
    assert len(again.asked) == 2 + after - before, "the space, to see that it is the same, what is left, and the timing"
    assert [footer.ended for footer in ended.footers] == ["interrupted", "complete"]


def test_of_several_cases_only_those_that_lack_a_search_are_gone_on_with(tmp_path: Path) -> None:
    def interrupted(request: Request) -> Reply | None:
        if request.case is not None and request.case.phase == "training" and request.task == "trial":
            raise KeyboardInterrupt
        return None

    broken = searched(tmp_path, network(interrupted), phases=["inference", "training"])
    again = network()
    ended = resumed(broken, again)
    assert {request.case.phase for request in again.asked if request.case} == {"training"}
    assert kinds(again).count("space") == 1  # only to see that the network is the same
    assert list(ended.of(KeepSearch)) == list(ended.cases)


@pytest.mark.parametrize(("uuid", "refused"), [("GPU-2", True), ("", False)])
def test_a_run_is_not_resumed_on_another_card_of_the_host(tmp_path: Path, uuid: str, refused: bool) -> None:
    begun = searched(tmp_path, network(interrupt_at("trial", 2)))

    def with_card(uuid: str) -> Environment:
        card = DeviceDescription(type="cpu", available=True, details={"uuid": uuid} if uuid else {})
        return structs.replace(ENVIRONMENT, devices=[card])

    on_first = structs.replace(begun.header, environment=with_card("GPU-1"))
    with pytest.raises(UsageError, match="its cpu device was GPU-1, here") if refused else nullcontext():
        check_same(dataclasses.replace(begun, header=on_first), with_card(uuid))


def test_a_search_whose_cases_are_others_now_is_not_gone_on_with(tmp_path: Path) -> None:
    broken = searched(tmp_path, network(interrupt_at("trial", 2)), phases=["inference"])
    selection = structs.replace(broken.header.selection, phases=["training"])
    with (
        pytest.raises(UsageError, match="its selection now gives other cases"),
        prepare(STUDY, selection, Settings(), WANTED, broken, open_channel=network),
    ):
        pass


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
    broken = searched(tmp_path, network(interrupt_at("trial", 3)))
    before = broken.several_of(Trial)

    def changed(request: Request) -> Reply | None:
        assert request.case is not None
        assert request.task == "space"
        return reply_with(structs.replace(SPACE, case_id=request.case.case_id, **changes))  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=f"cannot be resumed: the {what} (of mlp )?are others than it began with"):
        resumed(broken, network(changed))
    assert read_run(broken.path).several_of(Trial) == before


def test_nor_is_one_where_a_network_was_changed_between_two_of_its_cases(tmp_path: Path) -> None:
    seen = {"spaces": 0}

    def interrupted(request: Request) -> Reply | None:
        seen["spaces"] += request.task == "space"
        if seen["spaces"] == 2:
            raise KeyboardInterrupt
        return None

    broken = searched(tmp_path, network(interrupted), phases=["inference", "training"])
    assert (len(broken.of(KeepSearch)), len(broken.of(SearchSpace))) == (1, 1)

    def changed(request: Request) -> Reply | None:
        assert request.case is not None
        return reply_with(structs.replace(SPACE, case_id=request.case.case_id, weights_digest="changed"))

    with pytest.raises(UsageError, match="the weights of mlp are others"):
        resumed(broken, network(changed))
