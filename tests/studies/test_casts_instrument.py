"""Tracing the casts of cases: which are planned, what each worker is asked for, what is stored whatever happens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.core.precisions import AUTOCAST
from ampbench.errors import UsageError
from ampbench.records.casts import AUTOGRAD, COMPILED, CastPass, CastTrace
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies.casts import STUDY, CastsAsked
from tests.scripted_channel import Scripted, asked_in
from tests.studies.working import studied

ASKED = CastsAsked()
Instead = Callable[[Request], Reply | None]


def tracing(instead: Instead = lambda _: None) -> Scripted:
    """Return a channel that sees an empty trace in every case, or answers as `instead` does."""

    def answer(request: Request) -> Reply:
        assert request.case is not None
        seen = CastPass(case_id=request.case.case_id, how="device", trace=CastTrace())
        return instead(request) or reply_with(seen)

    return Scripted(answer)


def test_unless_told_otherwise_training_is_traced_in_the_devices_own_autocast_dtype(tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, tracing(), ASKED, devices=["cpu", "cuda", "xpu"])
    found = [(case.device, case.precision, case.phase, case.path) for case in run.cases.values()]
    assert found[:2] == [
        ("cpu", "bf16_autocast", "training", "eager"),
        ("cuda", "fp16_autocast", "training", "eager"),
    ]
    # this torch does not know the device, so not its default either
    assert [precision for _, precision, *_ in found[2:]] == AUTOCAST


def test_what_is_asked_for_is_the_path_as_a_graph_and_autograds_in_training(tmp_path: Path) -> None:
    channel = tracing()
    studied(
        STUDY, tmp_path, channel, CastsAsked(sources=True), phases=["inference", "training"],
        paths=["eager", "compiled"],
    )  # fmt: skip
    inference, training = map(asked_in, channel.asked)
    assert (inference.graphs, training.graphs) == ([COMPILED], [COMPILED, AUTOGRAD])
    assert inference.sources
    assert {request.case.path for request in channel.asked if request.case} == {"eager"}


def test_a_path_whose_graph_cannot_be_read_is_refused(tmp_path: Path) -> None:
    said = "explain casts is not for --path compiled-max-autotune: give eager, compiled or traced"
    with pytest.raises(UsageError, match=said):
        studied(STUDY, tmp_path, tracing(), ASKED, paths=["eager", "compiled-max-autotune"])
