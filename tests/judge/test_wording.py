import pytest

from ampbench.judge.deciding import Decision
from ampbench.judge.times import change_in_words, decision_in_words, mean_in_words
from ampbench.records.verdicts import Code, Verdict


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
        mean_change=None, mean_low=None, mean_high=None, mean_code=None, p90_change=None, standard_error=None,
        detectable_change=detectable, blocks_needed=40,
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
        mean_change=None, mean_low=None, mean_high=None, mean_code=None, p90_change=None, standard_error=None,
        detectable_change=0.05, blocks_needed=90,
    )  # fmt: skip
    assert decision_in_words(decision, 0.02, "blocks", 0).startswith(
        f"certainly {word}, between +1.2% and +4.7%, but not certainly by more than 2%; a change of 5.0%"
    )


def settled(code: Code, mean_code: Code, mean: tuple[float, float, float]) -> Decision:
    """A typical time that did not change, and a mean that did so."""
    return Decision(
        verdict=Verdict.INCONCLUSIVE, code=code, change=0.001, low=-0.004, high=0.006, p_worse=0.4, p_better=0.6,
        p_beyond=1.0, blocks=32, slow_share_baseline=0.0, slow_share_candidate=0.0, slow_p=1.0, mean_change=mean[0],
        mean_low=mean[1], mean_high=mean[2], mean_code=mean_code, p90_change=None, standard_error=None,
        detectable_change=None, blocks_needed=None,
    )  # fmt: skip


def test_unchanged_names_the_typical_time_and_the_mean():
    decision = settled(Code.WITHIN_THRESHOLD, Code.WITHIN_THRESHOLD, (0.002, -0.01, 0.014))
    assert decision_in_words(decision, 0.02, "blocks", 0, 0.05) == (
        "typical time 0.1% slower (95%: -0.4 to 0.6%), within 2%, the mean of all samples within 5%, 32 blocks"
    )


def test_an_open_tail_says_what_is_known_of_the_mean():
    decision = settled(Code.TAIL_UNDECIDED, Code.UNDECIDED, (0.03, -0.04, 0.11))
    assert decision_in_words(decision, 0.02, "blocks", 0, 0.05) == (
        "typical time 0.1% slower (95%: -0.4 to 0.6%), within 2%, but the mean of all samples 3.0% slower "
        "(95%: -4.0 to +11.0%), which is not certainly within 5%, 32 blocks"
    )


def test_a_mean_that_moved_alone_is_told_as_the_slow_steps_doing():
    decision = settled(Code.WITHIN_THRESHOLD, Code.BEYOND_THRESHOLD, (0.1, 0.08, 0.12))
    assert mean_in_words(decision, 0.05, "blocks", 10) == (
        "mean of all samples, slow steps among them: 10% slower (95%: +8.0 to +12.0%), certainly over 5%, 32 blocks, "
        "confirmed by 10 fresh ones; the typical step did not change"
    )
    open_still = settled(Code.UNDECIDED, Code.BEYOND_THRESHOLD, (0.1, 0.08, 0.12))
    assert mean_in_words(open_still, 0.05, "rounds", 0).endswith(
        "certainly over 5%, 32 rounds; the typical step is not known to have changed"
    )
