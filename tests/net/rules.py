"""Differences that are meant: which cells, why, and in how many. The data is never made anew: what changes is here.

A rule that touches another number of cells than it says fails, so that none stays that no longer holds. An example, of
a column that goes:

    Rule(
        "GradScaler's scale is in the study alone",
        lambda one: one.table == "frame" and one.column == "scaler_scale" and one.after == MISSING,
        cells=1_894,
    )
"""

from collections.abc import Callable
from dataclasses import dataclass

from ampbench.records.changes import VERDICT_COLUMNS
from tests.net.comparing import MISSING, Difference

SEEN = (
    "output_over_spread", "output_spread_name", "scaler_scale", "input_largest", "target_largest", "statistics_stall",
)  # fmt: skip
LOADED = (".loaded", ".no_grad", ".missed", ".trained", ".foreign")


ASKED = ("header.asked", "header.settings.heap", "header.settings.burst", "lacks")
UNREAD = (
    "rss_peak_bytes", "used_bytes", "reading_seconds", "warm_clock_hz", "involuntary_switches", ".rss_bytes",
    ".workspace_bytes", ".busy_undefined", ".state_on_host", ".warm_seconds", ".temperature_celsius", ".rates[]",
    ".update.sizes[]", ".sample_count", ".sample_undefined", ".kl_undefined", "_margin", ".worst_rel_l2",
    ".grad_worst_rel_l2", ".further.batches", ".further.ended",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Differences that are meant: the `reason`, whether one is `meant`, and in how many `cells`."""

    reason: str
    meant: Callable[[Difference], bool]
    cells: int


def _table(one: Difference, *columns: str) -> bool:
    """Return whether it is in what is to be taken of a table."""
    return one.table.startswith("advice") and " " in one.key and one.column in columns


def _case(one: Difference, *codes: str) -> bool:
    """Return whether it is in the verdict on a case, which has one of these codes."""
    told = one.column == "column" and one.after in codes
    return one.table.startswith("advice") and " " not in one.key and told


def _refused(one: Difference, phase: str, *columns: str) -> bool:
    """Return whether a number refused a case of a phase, and another one does or none."""
    case = one.table.startswith("advice") and " " not in one.key and f"/{phase}/" in one.key
    return case and one.column == "column" and one.before in columns


KEPT = "tests-net-runs-keep-fp32"
RULES: tuple[Rule, ...] = (
    Rule(
        "the smallest change that could have been found is shown for an arm against itself alone, not for each change",
        lambda one: one.column == "detectable_change" and one.after == MISSING,
        cells=750,
    ),
    Rule(
        "runs of checks are compared like others: which defects came and went, with nothing for a gate to judge",
        lambda one: one.name.startswith("checks-") and MISSING in (one.before, one.after),
        cells=612,
    ),
    Rule(
        "a description of a device says whether torch cannot use it",
        lambda one: one.table == "records" and one.key.endswith("devices[].unusable"),
        cells=240,
    ),
    Rule(
        "rounds on an accelerator are judged by the thread that launches, not by other work on the host's processors",
        lambda one: one.name in ("scripted-ab--later", "scripted-ab-later--") and one.table not in ("records", "means"),
        cells=293,
    ),
    Rule(
        "the interval of a change in a history of few points holds those of its runs' comparisons",
        lambda one: (one.name, one.table) == ("history", "changes") and one.column in ("low", "high"),
        cells=12,
    ),
    Rule(
        "a search stores its limits and the errors of units, its trials say the rest",
        lambda one: (
            one.name == KEPT
            and (
                one.key.startswith(("found[search]", "found[space]"))
                or one.key.startswith("header.asked")
                or one.table == "study, cases 0 kept"
            )
        ),
        cells=192,
    ),
    Rule(
        "all eleven sets that a search tried are rows, among them the five timed ones with the same numbers",
        lambda one: one.name == KEPT and one.table in ("study, rows", "study, cases 0 sets"),
        cells=307,
    ),
    Rule(
        "fields that nobody read are not stored",
        lambda one: one.table == "records" and one.key.endswith(UNREAD),
        cells=1_348,
    ),
    Rule(
        "headers say what was asked for in the fields of their kind alone",
        lambda one: one.table == "records" and one.key.startswith("header.asked"),
        cells=55,
    ),
    Rule(
        "nobody chooses a heap, and page faults of the plain one are not counted",
        lambda one: one.table == "records" and one.key in ("memory[].faults", "header.settings.heap"),
        cells=304,
    ),
    Rule(
        "updates are always compared where weights are stored in half",
        lambda one: one.table == "records" and one.key.endswith(".on_grid"),
        cells=4,
    ),
    Rule(
        "the program of a check is the text of a function, and its digest leaves out what it says of itself",
        lambda one: (one.table, one.column) == ("study, rows", "program") or one.key == "found[checked][][].program",
        cells=938,
    ),
    Rule(
        "37 checks of what every supported torch has mended are gone, and what they were about with them",
        lambda one: one.table == "study, rows" and one.column in ("area", "mended", "matters", "remedy", "threads"),
        cells=863,
    ),
    Rule(
        "every size is a table of the study of ceilings, with what it is of fp32's rate and of the vendor's peak",
        lambda one: (
            (one.table == "study, sizes" and one.before == MISSING)
            or (
                one.name == "tests-net-runs-ceilings"
                and one.column in ("work", "unit", "samples", "seconds", "arithmetic", "to_fp32")
            )
        ),
        cells=578,
    ),
    Rule(
        "which library of a CPU multiplied is not told",
        lambda one: one.name == "tests-net-runs-ceilings" and one.column == "library",
        cells=38,
    ),
    Rule(
        "what each check came to is a table of the study of checks",
        lambda one: one.table == "study, outcomes" and one.before == MISSING,
        cells=12_808,
    ),
    Rule(
        "every op on every device is a table of the study of autocast's rules",
        lambda one: one.table == "study, ops" and one.before == MISSING,
        cells=108_865,
    ),
    Rule(
        "what documents claim beside the rules of ops is for checks, and a probe's torch is its run's",
        lambda one: (
            (one.table == "records" and one.key.startswith(("found[rules][].claims", "found[rules][].torch_version")))
            or (one.table == "rules" and one.key.endswith("claim"))
        ),
        cells=207,
    ),
    Rule(
        "loss scaling is studied by trainings as those in other precisions are, each a row and a record",
        lambda one: one.name == "tests-net-runs-scaler" and not one.key.startswith(ASKED),
        cells=662,
    ),
    Rule(
        "trainings have their loss in fp32, gradients and loss scales beside what they had, and no time",
        lambda one: one.name == "tests-net-runs-convergence" and not one.key.startswith(ASKED),
        cells=642,
    ),
    Rule(
        "an update says in which dtype its intended step was taken",
        lambda one: one.table == "records" and one.key == "divergence[].update.intended",
        cells=68,
    ),
    Rule(
        "a gate is undecided where less than half of what it gates of a kind is decided",
        lambda one: (
            one.table in ("gates", "command")
            and (one.column, one.after) in (("exit_code", 4), ("passed", False))
            and not one.name.startswith("checks-")
        ),
        cells=122,
    ),
    Rule(
        "updates that one run measured and the other did not are numbers that are lost",
        lambda one: (
            one.name == "demo--default"
            and (
                one.key.endswith((" update_kept", " update_rel_l2", " param_nonfinite"))
                or one.column in ("findings", "decided_share")
            )
        ),
        cells=647,
    ),
    Rule(
        "what a policy ignores is not among the findings that a gate decides",
        lambda one: (
            (one.table, one.key) == ("gates", "of a file") and one.column in ("findings", "decided", "decided_share")
        ),
        cells=18,
    ),
    Rule(
        "a case that the candidate skipped is an undecided finding of each kind of a gate",
        lambda one: (
            (one.table, one.name) == ("gates", "scripted-cuda--later") and one.column in ("findings", "decided_share")
        ),
        cells=22,
    ),
    Rule(
        "a case that the candidate does not have is an undecided finding of each kind of a gate",
        lambda one: (
            (one.table, one.name) == ("gates", "plain--ab-baseline") and one.column in ("findings", "decided_share")
        ),
        cells=14,
    ),
    Rule(
        "a gate has no strict mode: a policy that asks for all to be decided has",
        lambda one: one.table == "gates" and one.key.startswith("strict") and one.after == MISSING,
        cells=602,
    ),
    Rule(
        "what no comparison judges has no finding where another program kept it",
        lambda one: (
            one.name.startswith("scripted-import")
            and (one.table == "findings" or (one.column in ("findings", "decided_share") and one.after != MISSING))
        ),
        cells=66,
    ),
    Rule(
        "each lane has an accelerator alone, and nothing asks what a round left free of its memory",
        lambda one: one.key == "rounds[].free_bytes",
        cells=24,
    ),
    Rule(
        "whether rounds of an accelerator are bursts shows in the rounds, case by case, and no setting has it",
        lambda one: (
            one.key == "header.settings.burst"
            or (one.table == "differences" and one.key == "what an accelerator's rounds are")
        ),
        cells=244,
    ),
    Rule(
        "columns of what one step sees: errors over what rows differ by, scale, range and running statistics",
        lambda one: one.table == "frame" and one.before == MISSING and one.column in SEEN,
        cells=17_142,
    ),
    Rule(
        "columns of the late place of a training, undefined in runs without one",
        lambda one: one.table == "frame" and one.before == MISSING and "late" in one.column.split("_"),
        cells=57_140,
    ),
    Rule("a training whose optimizer is not known is undecided", lambda one: _case(one, "no-optimizer"), cells=440),
    Rule(
        "what is undecided is not ok",
        lambda one: one.column == "objection" and one.after is True and one.before is False,
        cells=330,
    ),
    Rule(
        "what has no error, or one by chance, is undecided, with a code",
        lambda one: _case(one, "by-chance", "no-reference", "zero-reference"),
        cells=32,
    ),
    Rule(
        "where the network is at fault every precision has a verdict",
        lambda one: one.table.startswith("advice") and one.before == MISSING and one.after in (True, "fp32-output"),
        cells=12,
    ),
    Rule(
        "how weights were loaded, whether inference mode was refused, what an optimizer lacks",
        lambda one: one.table == "records" and one.key.endswith(LOADED),
        cells=288,
    ),
    Rule("what helps is told of what is passed over alone", lambda one: one.column == "remedy", cells=1_702),
    Rule(
        "only what is certain and ok is taken",
        lambda one: _table(one, "precision", "case_id"),
        cells=442,
    ),
    Rule(
        "what is faster or smaller and not ok is named, and decides",
        lambda one: _table(one, "passed_id", "column", "value"),
        cells=766,
    ),
    Rule(
        "a row says by which optimizer it is trained",
        lambda one: one.table == "frame" and one.column == "optimizer",
        cells=2_857,
    ),
    Rule(
        "every row of a frame has its verdict",
        lambda one: one.table == "frame" and one.column in VERDICT_COLUMNS and one.before == MISSING,
        cells=19_999,
    ),
    Rule(
        "the study of scopes has the error of the first step's loss, relative to the reference's, and no losses",
        lambda one: (
            one.name == "tests-net-runs-scope"
            and (
                one.table == "study, cases 0 losses"
                or "loss" in one.key
                or one.column in ("first_cast_bytes", "loss_abs_error", "first_loss", "last_loss", "end_loss")
            )
        ),
        cells=224,
    ),
    Rule(
        "whether a step repeats its bits is told of fp32 inputs, what half holds exactly in the record, and an input "
        "is lossy where an op reads it in fp32",
        lambda one: (
            one.name == "tests-net-runs-input-storage"
            and (one.column in ("repeatable", "exact", "use") or one.key.endswith(".uses[].use"))
        ),
        cells=22,
    ),
    Rule(
        "the origin of errors is by what the output errs with each module kept in fp32, against what it says",
        lambda one: (
            one.column == "kept_rel_l2"
            or one.key.startswith(("found[origin][].reference", "found[origin][].ablations"))
        ),
        cells=16,
    ),
    Rule(
        "modules are told first by which to keep, and without their error in the whole run, which keeping them tells",
        lambda one: (
            one.name == "tests-net-runs-origin"
            and (
                one.key.endswith(".total_rel_l2")
                or one.column in ("place", "module", "kind", "elements", "own_rel_l2", "total_rel_l2")
            )
        ),
        cells=38,
    ),
    Rule(
        "modules near overflow are named, and no prediction is told to be near",
        lambda one: one.name == "tests-net-runs-headroom" and one.column in ("overflow_near", "flush_near"),
        cells=36,
    ),
    Rule(
        "a module that only the whole step shows to overflow is in the sentence on that step, and no row",
        lambda one: (
            (one.name, one.table) == ("tests-net-runs-headroom", "study, cases 0 seen")
            and one.column not in ("overflow_near", "flush_near")
        ),
        cells=61,
    ),
    Rule(
        "groups of the casts of a step are tables, and say for which op, function and line a cast was made",
        lambda one: one.name == "tests-net-runs-casts" and one.table.startswith("study") and one.before == MISSING,
        cells=294,
    ),
    Rule(
        "every op, its uses of weights and totals are in the pass and a table of it, and no rows of their own",
        lambda one: one.name == "tests-net-runs-casts" and one.table.startswith("study") and one.after == MISSING,
        cells=2_532,
    ),
    Rule(
        "modules that do the same to dtypes share a row",
        lambda one: (
            one.name == "tests-net-runs-casts"
            and one.table.endswith(" module module")
            and MISSING not in (one.before, one.after)
        ),
        cells=9,
    ),
    Rule(
        "runs measure the peak of a step; a trace measures it for the changes that it tries",
        lambda one: one.key in ("found[casts][].peak_bytes", "found[casts][].memory_source"),
        cells=24,
    ),
    Rule(
        "recurrent cells on a CPU have no rule: ops inside are cast, the states are not",
        lambda one: (
            one.key.endswith("observations[].observed")
            or (one.before, one.after) == ("lower_precision", "lower_inside")
        ),
        cells=28,
    ),
    Rule(
        "nobody acts on how many elements of a module were sampled, nor on the part of its error that it inherits",
        lambda one: one.column in ("inherited", "sampled") or one.key.endswith(".sampled"),
        cells=28,
    ),
    Rule(
        "a header has no switches that a precision leaves to the user, and --no-scaler among what --set sets",
        lambda one: one.key in ("header.settings.keep_flags", "header.selection.scaler"),
        cells=472,
    ),
    Rule(
        "a run has a budget for each network, and no time after which nothing begins",
        lambda one: one.key == "header.settings.max_seconds",
        cells=8,
    ),
    Rule(
        "a file whose lines were taken out is not looked for, and a run does not say which one it follows",
        lambda one: one.key in ("lacks", "header.follows"),
        cells=144,
    ),
    Rule(
        "columns of log-probabilities, and near-ties of further decisions",
        lambda one: (
            (one.table == "frame" and one.before == MISSING and one.column.startswith("logprob_gap_"))
            or (one.table == "records" and one.key.endswith(".near_ties"))
        ),
        cells=5_782,
    ),
    Rule(
        "outputs act on a training through loss and gradient, which have limits",
        lambda one: _refused(one, "training", "output_rel_l2", "argmax_agreement"),
        cells=262,
    ),
    Rule(
        "classifiers are judged by decisions and nats, and 1% of samples may be wrong",
        lambda one: _refused(one, "inference", "output_rel_l2", "sample_p99_rel_l2", "sample_worst_rel_l2"),
        cells=70,
    ),
    Rule(
        "updates need room for the schedule that is given, and none of these runs gave one",
        lambda one: _refused(one, "training", "update_kept"),
        cells=25,
    ),
    Rule(
        "an error of gradients is advice where the noise of a batch is unknown",
        lambda one: _refused(one, "training", "grad_rel_l2", "grad_tensor_rel_l2", "grad_bias_ratio"),
        cells=50,
    ),
    Rule(
        "what one of these rules no longer refuses is ok",
        lambda one: one.column == "objection" and one.before is True and one.after is False,
        cells=253,
    ),
    Rule(
        "errors that the gradients of two batches have in common decide nothing, and are not measured",
        lambda one: one.column == "grad_bias_ratio" or one.key.endswith(".grad_bias"),
        cells=2_889,
    ),
    Rule(
        "no study measures what a change of casts saves but that of inputs, and none reads where peaks are from",
        lambda one: one.table == "records" and (".checked[]" in one.key or one.key.endswith("[].memory_source")),
        cells=52,
    ),
    Rule("a comparison has no means over cases, which nothing shows", lambda one: one.table == "means", cells=1_640),
)
