"""Which checks are run where, and which a run lacks."""

from unittest import mock

import pytest
from msgspec.structs import replace

from ampbench.defects import CACHE, COMPILE, Check
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.records.case import DeviceDescription
from ampbench.studies import check as instrument
from ampbench.studies.check import STUDY, ChecksAsked, wanted_of
from ampbench.studies.study import asked_for
from tests.stored_runs import make_header


def row(name: str, **of: object) -> Check:
    common = {"area": CACHE, "title": "t", "threads": ("a/b#1",), "why": "w", "remedy": "r"}
    return Check(name=name, **{**common, **of})  # type: ignore[arg-type]


ROWS = {
    one.name: one
    for one in (
        row("everywhere", fake=True),
        row("real", devices=("cpu", "cuda")),
        row("slow", area=COMPILE, slow=True, compiler=True, devices=("cpu",)),
    )
}


def wanted(*devices: str, names: tuple[str, ...] = (), areas: tuple[str, ...] = (), **environment: object) -> list[str]:
    here = replace(
        make_header().environment,
        devices=[DeviceDescription(type="cpu", available=True)],
        **environment,  # type: ignore[arg-type]
    )
    with (
        mock.patch.object(instrument, "CHECKS", ROWS),
        mock.patch.object(instrument, "program_of", return_value=""),
    ):
        found = wanted_of(here, devices, ChecksAsked(names=[*names, *areas]))
    return [f"{one.check} {one.device}" + (f": {one.why}" if one.why else "") for one in found]


def test_all_fast_checks_are_run_here_and_where_fake_tensors_answer() -> None:
    assert wanted() == ["everywhere cpu", "real cpu", "everywhere cuda", "everywhere xpu"]


def test_a_check_that_needs_a_device_that_is_absent_says_so_where_it_was_named() -> None:
    assert wanted("cuda", names=("real",)) == ["real cuda: needs a real cuda, and there is none"]
    with pytest.raises(NothingToRunError):
        wanted("xpu", names=("real",))


def test_slow_checks_are_run_by_name_or_area_and_those_that_compile_need_a_compiler() -> None:
    assert wanted("cpu", areas=(COMPILE,), compiler="/usr/bin/g++") == ["slow cpu"]
    (said,) = wanted("cpu", names=("slow",), compiler=None)
    assert said.startswith("slow cpu: needs a C++ compiler")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean stale-weight-cast"):
        asked_for(STUDY, {"names": ["stale-weight-cats"]})
    with pytest.raises(UnknownNameError, match="unknown check 'complie': did you mean compile"):
        asked_for(STUDY, {"names": ["complie"]})
