"""What a study of scopes or of input storage leaves undone, and what it was asked for."""

from pathlib import Path

import pytest

from ampbench.drive.pieces import asked_of, unfinished
from ampbench.errors import UsageError
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import SCOPE, Asked
from ampbench.store import read_run
from tests.instruments.scope.planted_scopes import scope_pass
from tests.stored_runs import make_case, write_run

CASES = [make_case("bf16_autocast", workload=name, phase="training") for name in ("a", "b", "c", "d", "e")]


def test_what_was_neither_studied_nor_failed_nor_skipped_is_left_and_what_was_killed(tmp_path: Path) -> None:
    ids = [case.case_id for case in CASES]
    failure = Failure(case_id=ids[1], stage="scope", cause="crash", message="signal 6")
    killed = Failure(case_id=ids[4], stage="scope", cause="killed", message="signal 9")
    path = write_run(
        tmp_path, CASES, scope_pass(CASES[3]), failure, killed, Skip(case_id=ids[2], reason="no loss given"),
        explains=SCOPE,
    )  # fmt: skip
    assert unfinished(read_run(path)) == [ids[0], ids[4]]


@pytest.mark.parametrize("asked", [None, Asked(steps=8)])
def test_a_run_that_does_not_say_what_it_was_asked_for_is_begun_anew(asked: Asked | None, tmp_path: Path) -> None:
    stored = read_run(write_run(tmp_path, CASES, explains=SCOPE, asked=asked))
    with pytest.raises(UsageError, match="does not say what it was asked for: begin a new one"):
        asked_of(stored, "seconds")
