"""Searching cases for what to keep in fp32: what is planned and asked, what is stored at once, how a search goes on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from ampbench.drive.planning import PlannedCase
from ampbench.errors import UsageError
from ampbench.instruments.keep_fp32.findings import points, said
from ampbench.instruments.keep_fp32.instrument import INSTRUMENT
from ampbench.instruments.keep_fp32.records import KeepSearch, SearchSpace, Trial, Unit, Wanted, Weighed, Weighing
from ampbench.instruments.keep_fp32.search import Found
from ampbench.instruments.keep_fp32.trials import islands, units_of
from ampbench.records.kinds import KEEP_FP32
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Footer, Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
from ampbench.studies.study import unfinished
from ampbench.studies.work import prepared as prepare
from tests.instruments.working import work
from tests.scripted_channel import CPU, Scripted, asked_in, got, machine
from tests.stored_runs import make_header

ENVIRONMENT = machine(CPU)
SPACE = SearchSpace(
    case_id="",
    units=[Unit(modules=[f"layer.{place}"], kind="Linear") for place in range(8)], containers=["", "layer"],
    weights_digest="ww", inputs_digest="ii",
)  # fmt: skip
PLANTED = frozenset({2, 5})
WANTED = Wanted(max_error=1e-2, max_gradient_error=1e-1, max_trials=40)


def network(instead: Callable[[Request], Reply | None] = lambda _: None) -> Scripted:
    """Return a channel whose network errs unless both planted modules are kept, or does `instead`."""
    return Scripted(lambda request: instead(request) or answer(request), ENVIRONMENT)


def kinds(channel: Scripted) -> list[str]:
    return [request.task for request in channel.asked]


def batch_of(request: Request) -> int:
    """Return which batch a request is for: 0, the first, but for trials on fresh ones."""
    return asked_in(request).batch if request.task == "trial" else 0


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
        return reply_with(structs.replace(SPACE, case_id=case_id))
    if request.task == "weighing":
        sets = [Weighed(kept=kept, samples=[[1e-3]] * 6, peak_bytes=1) for kept in asked_in(request).kept]
        return reply_with(Weighing(case_id=case_id, weighed=sets))
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
    wanted: Wanted = WANTED,
    watch: Callable[[PlannedCase, Entry | Failure | Skip | None], None] = lambda *_: None,
    **selected: list[str],
) -> StoredRun:
    """Return the run that searching what is selected leaves."""
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))  # type: ignore[arg-type]
    with prepare(INSTRUMENT, selection, Settings(), wanted, open_channel=lambda: channel) as prepared:
        header = make_header(
            explains=KEEP_FP32, environment=ENVIRONMENT, selection=prepared.selection, asked=msgspec.to_builtins(wanted)
        )
        with RunWriter.create(results, header, [planned.case for planned in prepared.plan]) as writer:
            work(INSTRUMENT, prepared, wanted, writer, watch)
    return read_run(writer.path)


def resumed(run: StoredRun, channel: Scripted) -> StoredRun:
    """Return what a run becomes when it is gone on with."""
    writer, begun = RunWriter.reopen(run.path)
    with (
        writer,
        prepare(
            INSTRUMENT,
            begun.header.selection,
            begun.header.settings,
            begun.asked,
            begun,
            open_channel=lambda: channel,
        ) as prepared,
    ):
        work(INSTRUMENT, prepared, begun.asked, writer, begun=begun)
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


def test_unless_told_otherwise_inference_in_the_devices_own_autocast_dtype_is_searched(tmp_path: Path) -> None:
    run = searched(tmp_path, network())
    assert [(case.precision, case.phase, case.path) for case in run.cases.values()] == [
        ("bf16_autocast", "inference", "eager")
    ]


def test_the_smallest_set_is_found_and_the_sets_around_it_are_weighed(tmp_path: Path) -> None:
    channel = network()
    run = searched(tmp_path, channel)
    search = only(run)
    assert (search.found, search.units, search.smallest) == (["layer.2", "layer.5"], 2, True)
    assert (search.max_error, search.max_gradient_error, search.objective) == (1e-2, None, "speed")
    assert kinds(channel)[0] == "space"
    assert kinds(channel)[-1] == "weighing"
    assert set(kinds(channel)[1:-1]) == {"trial"}
    assert search.weighing is not None
    assert (search.weighing.weighed[0].kept, search.weighing.weighed[-1].kept) == ([], [""])
    assert ["layer.2", "layer.5"] in [one.kept for one in search.weighing.weighed]
    case_id = search.case_id
    assert all(
        point.output_rel_l2 or not point.meets for point in points(search, SPACE, run.several_of(Trial)[case_id])
    )


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
    channel = network(on_batch(2, "layer.2", "layer.5", error=9e-3))
    run = searched(tmp_path, channel)
    search = only(run)
    assert search.found == ["layer.2", "layer.5"]
    fresh = [request for request in channel.asked if request.task == "trial" and asked_in(request).batch]
    assert [(asked_in(request).batch, asked_in(request).kept) for request in fresh] == [
        (batch, ["layer.2", "layer.5"]) for batch in (1, 2, 3)
    ]
    assert len(search.confirmed) == 3
    assert search.trials == len(run.several_of(Trial)[search.case_id])  # these are none of the trials
    assert "confirmed on 3 other batches: at worst the output error is 9.0e-03 (budget 1.0e-02)" in said(
        search, SPACE, run.several_of(Trial)[search.case_id]
    )


def test_a_set_that_misses_the_budget_on_another_batch_gives_way_to_the_next(tmp_path: Path) -> None:
    channel = network(on_batch(3, "layer.2", "layer.5", error=1.1e-2))
    run = searched(tmp_path, channel)
    search = only(run)
    assert search.found is not None
    assert search.units == 3
    assert units_of(SPACE, search.found) > PLANTED
    assert [(trial.kept, trial.batch, trial.output_rel_l2) for trial in search.refuted] == [
        (["layer.2", "layer.5"], 3, 1.1e-2)
    ]
    assert [trial.kept for trial in search.confirmed] == [search.found] * 3
    told = said(search, SPACE, run.several_of(Trial)[search.case_id])
    assert any(line.startswith("1 other set met it on the first batch and not on another; nearest") for line in told)
    for point in points(search, SPACE, run.several_of(Trial)[search.case_id]):
        assert point.refuted == (point.kept == ["layer.2", "layer.5"])
        assert not (point.meets and point.refuted)


def test_where_every_set_fails_on_another_batch_none_is_found(tmp_path: Path) -> None:
    def instead(request: Request) -> Reply | None:
        if request.task != "trial" or not asked_in(request).batch:
            return None
        assert request.case is not None
        return reply_with(Trial(case_id=request.case.case_id, kept=asked_in(request).kept, output_rel_l2=0.5, batch=1))

    run = searched(tmp_path, network(instead), structs.replace(WANTED, max_trials=12))
    search = only(run)
    assert search.found is None
    assert search.confirmed == []
    assert search.refuted
    assert len(run.several_of(Trial)[search.case_id]) <= 12
    assert any(
        "the closest is" in line and "5.0e-01" in line
        for line in said(search, SPACE, run.several_of(Trial)[search.case_id])
    )


def test_without_another_batch_what_is_found_is_told_not_to_be_confirmed(tmp_path: Path) -> None:
    def instead(request: Request) -> Reply | None:
        assert request.case is not None
        skip = Skip(case_id=request.case.case_id, reason="there is one batch")
        return Reply(skip=skip) if request.task == "trial" and asked_in(request).batch else None

    search = only(searched(tmp_path, network(instead)))
    assert search.found == ["layer.2", "layer.5"]
    assert (search.confirmed, search.refuted) == ([], [])
    assert search.notes == ["not confirmed on another batch: there is one batch"]


def test_a_resumed_search_refutes_the_same_sets(tmp_path: Path) -> None:
    fails = on_batch(1, "layer.2", "layer.5", error=1.1e-2)
    whole = only(searched(tmp_path / "whole", network(fails)))
    broken = interrupt_at("trial", 8)
    run = searched(tmp_path / "broken", network(lambda request: broken(request) or fails(request)))
    assert only(resumed(run, network(fails))).found == whole.found


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
    search = only(searched(tmp_path, channel, wanted, precisions=[precision], phases=[phase]))
    assert search.min_update_kept == (0.98 if bounded else None)
    assert {asked_in(request).updates for request in channel.asked if request.task == "trial"} == {bounded}
    assert search.found == (["layer.2", "layer.5", "layer.7"] if bounded else ["layer.2", "layer.5"])


def test_the_space_and_each_trial_are_stored_before_the_next_is_asked_for(tmp_path: Path) -> None:
    stored: list[tuple[str, int]] = []

    def look(request: Request) -> Reply | None:
        run = read_run(next((tmp_path / "runs").glob("*.jsonl")))
        if not batch_of(request):
            stored.append((request.task, len(run.of(SearchSpace)) + sum(map(len, run.several_of(Trial).values()))))
        return None

    searched(tmp_path, network(look))
    assert [count for _, count in stored] == list(range(len(stored)))


def test_trials_are_numbered_and_what_is_wanted_is_stored_with_the_space(tmp_path: Path) -> None:
    run = searched(tmp_path, network())
    (trials,) = run.several_of(Trial).values()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len({tuple(trial.kept) for trial in trials}) == len(trials)
    assert run.asked == WANTED


def test_the_trials_of_a_case_share_a_worker_and_the_weighing_has_its_own(tmp_path: Path) -> None:
    channel = network()
    searched(tmp_path, channel, phases=["inference", "training"])
    fresh = [request.fresh for request in channel.asked]
    assert fresh == [request.task in ("space", "weighing") for request in channel.asked]


def test_gradients_are_bounded_in_training_only(tmp_path: Path) -> None:
    run = searched(
        tmp_path, network(), structs.replace(WANTED, max_gradient_error=1e-2), phases=["inference", "training"]
    )
    inference, training = (run.of(KeepSearch)[case_id] for case_id in run.cases)
    assert (inference.found, inference.max_gradient_error) == (["layer.2", "layer.5"], None)
    assert (training.found, training.max_gradient_error) == (None, 1e-2)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 8, 12])
def test_no_more_sets_are_tried_than_asked_for_not_even_to_be_weighed(most: int, tmp_path: Path) -> None:
    channel = network()
    run = searched(tmp_path, channel, structs.replace(WANTED, max_trials=most))
    search = only(run)
    assert (
        sum(request.task == "trial" and not asked_in(request).batch for request in channel.asked)
        == search.trials
        <= most
    )
    assert search.weighing is not None
    known = {tuple(trial.kept) for trial in run.several_of(Trial)[search.case_id]}
    assert {tuple(one.kept) for one in search.weighing.weighed} <= known
    assert said(search, run.of(SearchSpace)[search.case_id], run.several_of(Trial)[search.case_id])


@pytest.mark.parametrize(("most", "searching"), [(1, 1), (3, 3), (4, 3), (8, 6), (60, 58)])
def test_of_enough_trials_some_are_left_for_the_weighing(
    most: int, searching: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def no_search(*_: object, max_trials: int, **__: object) -> Found:
        asked.append(max_trials)
        return Found(kept=None, units=None, smallest=False, trials=0)

    monkeypatch.setattr("ampbench.instruments.keep_fp32.searching.search", no_search)
    searched(tmp_path, network(), structs.replace(WANTED, max_trials=most))
    assert asked == [searching]


def test_a_smaller_set_that_was_tried_to_be_weighed_and_meets_the_budget_is_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_search(space: SearchSpace, attempt: Callable[[list[str]], Trial], **_: object) -> Found:
        attempt([])
        attempt([""])
        return Found(kept=[""], units=frozenset(range(8)), smallest=True, trials=2)

    monkeypatch.setattr("ampbench.instruments.keep_fp32.searching.search", no_search)
    monkeypatch.setattr(
        "ampbench.instruments.keep_fp32.searching.sets_between",
        lambda *_: [[], ["layer.2", "layer.5"], ["layer.1"], [""]],
    )
    search = only(searched(tmp_path, network()))
    assert (search.found, search.units, search.smallest) == (["layer.2", "layer.5"], 2, False)


@pytest.mark.parametrize("kind", ["space", "trial"])
def test_a_worker_that_dies_ends_the_search_of_its_case(kind: str, tmp_path: Path) -> None:
    def dying(request: Request) -> Reply | None:
        if request.case is None or request.task != kind or request.case.phase == "training":
            return None
        return Reply(failure=Failure(case_id=request.case.case_id, stage=kind, cause="time-out", message="too long"))

    run = searched(tmp_path, network(dying), phases=["inference", "training"])
    failed, ok = run.cases
    assert (list(run.failures), list(run.of(KeepSearch)), run.ended) == ([failed], [ok], "complete")
    assert run.failures[failed].stage == kind


def test_a_weighing_that_fails_loses_nothing_that_was_found(tmp_path: Path) -> None:
    def failing(request: Request) -> Reply | None:
        if request.task != "weighing" or request.case is None:
            return None
        message = "no room"
        return Reply(
            failure=Failure(case_id=request.case.case_id, stage="weighing", cause="out of memory", message=message)
        )

    search = only(searched(tmp_path, network(failing)))
    assert (search.found, search.weighing) == (["layer.2", "layer.5"], None)
    assert search.notes == ["what sets cost was not measured: out of memory: no room"]


def test_a_worker_that_is_killed_in_the_weighing_loses_nothing_and_is_replaced(tmp_path: Path) -> None:
    whole = searched(tmp_path / "whole", network(), phases=["inference", "training"])
    channel = network(killed("weighing"))
    run = searched(tmp_path / "killed", channel, phases=["inference", "training"])
    first, second = run.of(KeepSearch).values()
    assert first.notes == ["what sets cost was not measured: killed: by SIGKILL"]
    assert (
        structs.replace(first, notes=[], weighing=whole.of(KeepSearch)[first.case_id].weighing)
        == (whole.of(KeepSearch)[first.case_id])
    )
    assert second == whole.of(KeepSearch)[second.case_id]
    assert (run.failures, run.ended) == ({}, "complete")
    assert channel.closed == 2 + 2, "the killed ones before anything else is asked, as each at the end"


def test_a_worker_that_dies_of_a_set_that_is_tried_only_to_be_weighed_loses_nothing(tmp_path: Path) -> None:
    trials = {"count": 0}
    enough = only(searched(tmp_path / "whole", network())).trials

    def dying(request: Request) -> Reply | None:
        trials["count"] += request.task == "trial" and not asked_in(request).batch
        if trials["count"] < enough or request.case is None:
            return None
        return Reply(failure=Failure(case_id=request.case.case_id, stage="trial", cause="crash", message="SIGSEGV"))

    search = only(searched(tmp_path / "dying", network(dying)))
    assert (search.found, search.weighing) == (["layer.2", "layer.5"], None)
    assert search.notes == ["what sets cost was not measured: crash: SIGSEGV"]


def test_sets_that_no_step_runs_with_are_not_weighed(tmp_path: Path) -> None:
    def refusing(request: Request) -> Reply | None:
        if request.task == "trial" and request.case is not None and asked_in(request).kept == []:
            return reply_with(Trial(case_id=request.case.case_id, error="RuntimeError: mixed dtypes"))
        return None

    search = only(searched(tmp_path, network(refusing)))
    assert search.weighing is not None
    assert [] not in [one.kept for one in search.weighing.weighed]
    assert search.found == ["layer.2", "layer.5"]


@pytest.mark.parametrize(("kind", "count"), [("trial", 2), ("trial", 5), ("weighing", 1)])
def test_an_interrupted_search_goes_on_where_it_was_and_ends_as_if_it_had_not_been(
    kind: str, count: int, tmp_path: Path
) -> None:
    whole = searched(tmp_path / "whole", network())
    broken = searched(tmp_path / "broken", network(interrupt_at(kind, count)))
    assert (broken.ended, broken.of(KeepSearch), unfinished(broken)) == ("interrupted", {}, list(broken.cases))
    again = network()
    ended = resumed(broken, again)
    assert only(ended) == only(whole)
    assert ended.several_of(Trial) == whole.several_of(Trial)
    asked = [request for request in again.asked if not batch_of(request)]
    assert len(asked) == 2 + sum(map(len, whole.several_of(Trial).values())) - sum(
        map(len, broken.several_of(Trial).values())
    )
    assert len(again.asked) == len(asked) + 3  # what is found is confirmed again
    assert all(request.fresh for request in again.asked[:2])
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


def test_a_search_is_not_gone_on_with_in_another_environment(tmp_path: Path) -> None:
    broken = searched(tmp_path, network(interrupt_at("trial", 2)))
    header = structs.replace(broken.header, environment=structs.replace(ENVIRONMENT, host="other"))
    with (
        pytest.raises(UsageError, match="cannot be resumed here: its host was other"),
        prepare(
            INSTRUMENT,
            header.selection,
            Settings(),
            WANTED,
            dataclasses.replace(broken, header=header),
            open_channel=network,
        ),
    ):
        pass


def test_a_search_whose_cases_are_others_now_is_not_gone_on_with(tmp_path: Path) -> None:
    broken = searched(tmp_path, network(interrupt_at("trial", 2)))
    selection = structs.replace(broken.header.selection, phases=["training"])
    with (
        pytest.raises(UsageError, match="its selection now gives other cases"),
        prepare(INSTRUMENT, selection, Settings(), WANTED, broken, open_channel=network),
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
    before = broken.path.read_bytes()

    def changed(request: Request) -> Reply | None:
        assert request.case is not None
        assert request.task == "space"
        return reply_with(structs.replace(SPACE, case_id=request.case.case_id, **changes))  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=f"cannot be resumed: the {what} of mlp are others than it began with; start"):
        resumed(broken, network(changed))
    assert broken.path.read_bytes() == before


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


def test_a_network_that_cannot_be_looked_into_any_more_says_why(tmp_path: Path) -> None:
    broken = searched(tmp_path, network(interrupt_at("trial", 3)))
    with pytest.raises(UsageError, match="cannot be resumed: killed: by SIGKILL"):
        resumed(broken, network(killed("space")))


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ({"workloads": []}, r"of which workload\? Name one, as in `ampbench explain keep-fp32 mlp`"),
        ({"precisions": ["fp32"]}, "keep-fp32 asks what a low precision must leave in fp32, and fp32 is none"),
        ({"precisions": ["bf16_autocast", "tf32"]}, "and tf32 is none"),
        ({"paths": ["compiled"]}, "a compiled network does not run"),
    ],
)
def test_what_cannot_be_searched_is_refused(selected: dict[str, list[str]], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        searched(tmp_path, network(), **selected)


def test_who_watches_is_told_of_the_space_and_every_trial(tmp_path: Path) -> None:
    told: list[type] = []
    run = searched(tmp_path, network(), watch=lambda _, found: told.append(type(found)))
    (trials,) = run.several_of(Trial).values()
    assert told == [type(None), SearchSpace, *[Trial] * len(trials), KeepSearch]


def test_a_footer_ends_each_session(tmp_path: Path) -> None:
    assert [type(footer) for footer in searched(tmp_path, network()).footers] == [Footer]


def test_the_names_asked_for_are_those_that_keep_a_container_whole(tmp_path: Path) -> None:
    channel = network()
    searched(tmp_path, channel)
    tried = [asked_in(request).kept for request in channel.asked if request.task == "trial"]
    (weighed,) = [asked_in(request).kept for request in channel.asked if request.task == "weighing"]
    for kept in (*tried, *weighed):
        assert islands(SPACE, units_of(SPACE, kept)) == kept
