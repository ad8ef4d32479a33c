import json

import pytest
from msgspec.structs import replace

from ampbench.errors import StoreError
from ampbench.records.measured import Score
from ampbench.records.wire import Nothing
from ampbench.store import gathered, read_run
from ampbench.studies.ceilings import COPY, Attained, Ceiling, CeilingsAsked
from ampbench.studies.training import CONTROL, Training
from tests.stored_runs import make_case, write_run

CASE = make_case(phase="training")
TRAINING = Training(
    case_id=CASE.case_id,
    seed=1,
    steps=2,
    losses=[2.5, None],
    scores=[Score(step=0, loss=2.6, correct=3, decisions=10)],
    weights_digest="w",
    inputs_digest="i",
    scales=[(0, 65536.0), (1, 32768.0)],
)
CEILING = Ceiling(
    device="cpu", operation=COPY, dtype="bf16", threads=2, attained=[Attained(size="4 MiB", work=8, samples=[1e-3])]
)
STUDIED = (TRAINING, replace(TRAINING, arm=CONTROL), CEILING)


@pytest.mark.parametrize(
    ("explains", "said", "asked"),
    [
        ("ceilings", {"seconds": 0.5, "dtype": ["bf16"]}, CeilingsAsked(seconds=0.5, dtype=["bf16"])),
        ("rules", {}, Nothing()),
    ],
)
def test_what_a_study_was_asked_is_read_with_its_own_type(explains, said, asked, tmp_path):
    path = write_run(tmp_path, [CASE], explains=explains, asked=said)
    assert read_run(path).asked == asked
    path.unlink()
    assert read_run(write_run(tmp_path, [CASE], explains=explains)).asked is None


@pytest.mark.parametrize("said", [{"steps": "five"}, {"stepz": 5}, {"steps": -1}, {"seeds": 3}, {"seconds": 1e300}])
def test_what_a_study_cannot_have_been_asked_is_damage(said, tmp_path):
    sound = {"steps": 4, "seconds": 0.5}
    with pytest.raises(StoreError, match="cannot store a Header: damaged: asked: "):
        write_run(tmp_path / "written", [CASE], explains="scope", asked=sound | said)
    path = write_run(tmp_path, [CASE], explains="scope", asked=sound)
    text, was = path.read_text(), '"asked":{"steps":4,"seconds":0.5}'
    assert was in text
    path.write_text(text.replace(was, f'"asked":{json.dumps(sound | said)}'))
    with pytest.raises(StoreError, match="line 1: damaged: asked: "):
        read_run(path)


def test_what_a_study_adds_follows_what_its_run_had_before(tmp_path):
    begun = read_run(write_run(tmp_path, [CASE], *STUDIED))
    further = gathered(begun.path, begun.header, [replace(TRAINING, seed=2), replace(CEILING, dtype="fp32")], begun)
    assert [one.seed for one in further.several_of(Training)[CASE.case_id]] == [1, 1, 2]
    assert [one.dtype for one in further.every(Ceiling)] == ["bf16", "fp32"]
    assert len(begun.several_of(Training)[CASE.case_id]) == 2, "the run that was begun stays as it was read"
