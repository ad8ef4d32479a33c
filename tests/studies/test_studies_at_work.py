"""What is planned of a run that is gone on with, and what a study in it leaves undone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs, to_builtins

from ampbench.core.precisions import LOW, PRECISIONS, Precision
from ampbench.drive.planning import PlannedCase
from ampbench.drive.session import Prepared
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import OwnPrecision
from ampbench.records.kinds import SCOPE
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import Description, Nothing, reply_with
from ampbench.store import RunWriter, read_run
from ampbench.studies.casts import CastsAsked
from ampbench.studies.headroom import RangesAsked
from ampbench.studies.input_storage import StorageAsked
from ampbench.studies.keep_fp32 import KeepAsked
from ampbench.studies.scope import ScopeAsked
from ampbench.studies.study import study_of
from ampbench.studies.work import Piece, do_pieces, lacking, prepared, require_among
from ampbench.workloads.index import WORKLOADS, source
from tests.scripted_channel import CPU, Scripted, machine
from tests.stored_runs import make_case, make_header, write_run
from tests.studies.planted_scopes import scope_pass


@pytest.mark.parametrize("row", [row for row in PRECISIONS.values() if row.same_ops])
def test_who_asks_about_ops_is_sent_to_the_precision_whose_ops_they_are(row: Precision) -> None:
    selection = Selection(workloads=["mlp"], precisions=["fp32", row.name])
    said = f"{row.name} runs the ops of {row.same_ops}, with another optimizer step: give that"
    with pytest.raises(UsageError, match=f"^{said}$"):
        require_among(selection, ["fp32", *LOW], "explain origin")
    with pytest.raises(UsageError, match=f"^study scope is not for {row.name}: give bf16_autocast$"):
        require_among(Selection(precisions=[row.name]), ["bf16_autocast"], "study scope")


ASKING: dict[str, Any] = {
    "casts": CastsAsked(),
    "headroom": RangesAsked(),
    "origin": Nothing(),
    "keep-fp32": KeepAsked(),
    "input-storage": StorageAsked(seconds=1.0),
    "scope": ScopeAsked(steps=8, seconds=1.0),
}
"""What asks about ampbench's own precisions, and for what."""

OWN = Scripted(
    lambda _: reply_with(
        Description(
            parameters={}, has_loss=True, items_per_step=1.0, version=0, channels_last=False,
            precisions=(OwnPrecision(name="mine", storage="float32", autocast="float16", rounding="float16"),),
        )
    ),
    machine(CPU),
)  # fmt: skip


@pytest.fixture
def users_own(tmp_path: Path) -> Iterator[Selection]:
    """A workload whose file has a precision of its own, which is asked for and forgotten afterwards."""
    before = dict(PRECISIONS)
    (tmp_path / "model.py").touch()
    yield Selection(workloads=[f"{tmp_path}/model.py:make"], precisions=["fp16-autocast", "mine"])
    PRECISIONS.clear()
    PRECISIONS.update(before)


@pytest.mark.parametrize("verb", ASKING)
def test_who_asks_about_ampbenchs_own_precisions_refuses_a_users_own_and_an_unknown_one(
    verb: str, users_own: Selection
) -> None:
    def prepare(selection: Selection) -> AbstractContextManager[Prepared]:
        return prepared(study_of(verb), selection, Settings(), ASKING[verb], open_channel=lambda: OWN)

    for _ in range(2):  # the second time it is known in this process
        with (
            pytest.raises(UsageError, match=r"^mine is your own precision: measure it with `ampbench run`; "),
            prepare(users_own),
        ):
            pass
    unknown = structs.replace(users_own, precisions=["mina"])
    with pytest.raises(UnknownNameError, match=r"^unknown precision 'mina': did you mean mine"), prepare(unknown):
        pass
    allowed = structs.replace(users_own, precisions=["fp16_autocast"])
    with prepare(allowed) as found:
        assert found.plan


CASES = [make_case("bf16_autocast", workload=name, phase="training") for name in ("a", "b", "c", "d", "e")]


def test_what_was_neither_studied_nor_failed_nor_skipped_is_left_and_what_was_killed(tmp_path: Path) -> None:
    ids = [case.case_id for case in CASES]
    failure = Failure(case_id=ids[1], stage="scope", cause="crash", message="signal 6")
    killed = Failure(case_id=ids[4], stage="scope", cause="killed", message="signal 9")
    path = write_run(
        tmp_path, CASES, scope_pass(CASES[3]), failure, killed, Skip(case_id=ids[2], reason="no loss given"),
        explains=SCOPE, asked=to_builtins(ScopeAsked()),
    )  # fmt: skip
    assert [case.case_id for case in lacking(study_of(SCOPE), read_run(path))] == [ids[0], ids[4]]


def test_what_cannot_be_stored_of_a_case_ends_it_and_no_other(tmp_path: Path) -> None:
    cases, told = CASES[:3], []

    def work(_: object, piece: Piece) -> Entry:
        found = scope_pass(piece.planned.case)
        return structs.replace(found, steps=-1) if piece.key == cases[1].case_id else found

    pieces = [Piece(PlannedCase(case=case, source=source(WORKLOADS["mlp"]))) for case in cases]
    with RunWriter.create(tmp_path, make_header(explains=SCOPE), cases) as writer:
        assert do_pieces(lambda: OWN, pieces, work, writer, lambda _, found: told.append(found)) == "complete"
    stored = read_run(writer.path)
    assert list(stored.explained) == [cases[0].case_id, cases[2].case_id]
    (failure,) = stored.failures.values()
    assert (failure.case_id, failure.stage, failure.cause) == (cases[1].case_id, "scope", "exception")
    assert failure.message.startswith("invalid measurement: damaged: ")
    assert told[3] == failure
