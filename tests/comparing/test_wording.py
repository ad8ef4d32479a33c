import pytest

from ampbench.comparing.deciding import Decision
from ampbench.comparing.wording import change_in_words, decision_in_words
from ampbench.verdicts import Code, Verdict


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.072, "7.2% slower"), (-0.05, "5.0% faster"), (2.1, "3.1 times as long"), (0.0, "0% faster")],
)
def test_changes_are_said_in_words(change, text):
    assert change_in_words(change) == text


@pytest.mark.parametrize(("detectable", "said"), [(0.5, True), (10.0, True), (10.01, False), (1.4e26, False)])
def test_a_change_beyond_all_reason_is_not_said_to_have_been_seen(detectable: float, said: bool):
    decision = Decision(
        verdict=Verdict.INCONCLUSIVE, code=Code.UNDECIDED, change=0.1, low=-0.99, high=detectable, p_worse=None,
        p_better=None, p_beyond=None, blocks=3, slow_share_baseline=0.0, slow_share_candidate=0.0, slow_p=1.0,
        mean_change=None, p90_change=None, standard_error=None, detectable_change=detectable, blocks_needed=40,
    )  # fmt: skip
    text = decision_in_words(decision, 0.02, "rounds", 0)
    assert ("would have been seen" in text) is said
    assert ("and over +1000%" in text) is not said
    assert text.endswith("about 40 rounds would decide")
    assert len(text) < 120


@pytest.mark.parametrize(("p_worse", "p_better", "word"), [(1e-4, 0.9999, "slower"), (0.9999, 1e-4, "faster")])
def test_what_certainly_changed_by_an_uncertain_size_is_told_so(p_worse: float, p_better: float, word: str):
    decision = Decision(
        verdict=Verdict.INCONCLUSIVE, code=Code.UNDECIDED, change=0.03, low=0.012, high=0.047, p_worse=p_worse,
        p_better=p_better, p_beyond=0.02, blocks=32, slow_share_baseline=0.0, slow_share_candidate=0.0, slow_p=1.0,
        mean_change=None, p90_change=None, standard_error=None, detectable_change=0.05, blocks_needed=90,
    )  # fmt: skip
    assert decision_in_words(decision, 0.02, "blocks", 0).startswith(
        f"certainly {word}, between +1.2% and +4.7%, but not certainly by more than 2%; a change of 5.0%"
    )
