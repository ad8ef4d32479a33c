"""How much error a precision may bring: what options, settings files and advice share, without what judges by it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any

from ampbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limit:
    """What the command line says of a limit: its `flag`, what that takes, and its `help`.

    A value is of a `kind` that is named in messages, from 0 to `most`.
    """

    flag: str
    metavar: str
    help: str
    kind: str
    most: float

    @property
    def parameter(self) -> str:
        """The name of the parameter that the flag gives."""
        return self.flag.removeprefix("--").replace("-", "_")


def _limit(default: float, flag: str, help: str, *, metavar: str, kind: str, most: float = math.inf) -> Any:
    return field(default=default, metadata={"limit": Limit(flag, metavar, help, kind, most)})


_error = partial(_limit, metavar="ERROR", kind="a relative error of 0 or more")
_share = partial(_limit, metavar="SHARE", kind="a share between 0 and 1", most=1.0)
_divergence = partial(_limit, metavar="NATS", kind="a divergence of 0 nats or more")


@dataclass(frozen=True, kw_only=True)  # no slots: the class' attributes are the defaults of the command line
class Budget:
    """How much error a precision may bring; the name of each limit is the column that it bounds.

    No non-finite output and, in training, no non-finite parameter, no step skipped once GradScaler's scale has settled
    and no loss of updates (the constants below) are not negotiable. Of single parameters with 1% of the
    gradients' norm, `OF_A_TENSOR` times the error of all is allowed. `ampbench.judge.looks.LOOKS` applies them.
    The other defaults and their sources:

    * `output_rel_l2` 2e-2, of the output that errs most: `torch.testing.assert_close` accepts 1.6e-2 (relative) for
      bf16. The error of merely rounding a reference output to bf16 is 1.6e-3 on real networks, healthy autocast is
      three to ten times that.
    * `sample_p99_rel_l2` 5e-2 and `sample_worst_rel_l2` 2e-1: conventions, 2.5 and ten times what is allowed of all
      samples together; samples ten times beyond that limit use it up once they are 0.25%.
    * `kl_mean` 1e-2 nats: by Pinsker's inequality the probability of nothing then differs by more than 7% on average.
      LLaMA 3 8B lies 5.5e-3 from itself in six-bit and 1.1e-2 in five-bit weights (llama.cpp, examples/perplexity).
      `kl_p99` 1e-1: a convention, ten times that (22% by Pinsker).
    * `loss_rel_error` 5e-2: a convention.
    * `argmax_agreement` 0.99: MLPerf Inference asks for 99% of the fp32 accuracy (Reddi et al., 2020); at 99%
      agreement the accuracy cannot have moved by more than one point. Judged beyond chance, see
      `looks.is_chance`.
    * `grad_rel_l2` 1e-1: at the critical batch size the noise of a minibatch gradient is as large as the gradient
      (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018). An independent error of a tenth of it
      adds 0.5% in quadrature.
    * `grad_flushed_share` 1e-2: Micikevicius et al., "Mixed Precision Training" (2018), section 3.1, report harm where
      about 5% of the gradients became zero; a fifth of that leaves room. Counted beyond what fp32 flushes itself.

    Raises `UsageError` for a limit that is negative, not a number, or an agreement above 1.
    """

    output_rel_l2: float = _error(
        2e-2,
        "--max-error",
        "Largest output error (relative L2 against fp64) to allow. The default is ten times the error of "
        "rounding to bf16, near torch.testing's 1.6e-2 for bf16.",
    )
    argmax_agreement: float = _share(
        0.99,
        "--min-argmax-agreement",
        "Smallest share of a classifier's decisions that stay the same; a shortfall counts when chance cannot "
        "explain it (5%). MLPerf Inference asks for 99% of the accuracy.",
    )
    grad_rel_l2: float = _error(
        1e-1,
        "--max-gradient-error",
        "Largest gradient error (relative L2) to allow in training. A tenth adds 0.5% to the noise a minibatch "
        "gradient has at the critical batch size (McCandlish et al. 2018).",
    )
    grad_flushed_share: float = _share(
        1e-2,
        "--max-flushed-share",
        "Largest share of gradients flushed to zero to allow in training. Harm is reported at 5% (Micikevicius "
        "et al. 2018, 3.1).",
    )
    sample_p99_rel_l2: float = _error(
        5e-2,
        "--max-sample-error",
        "Largest error that 99 of 100 samples of a batch may have (relative L2 of each). A convention.",
    )
    sample_worst_rel_l2: float = _error(
        2e-1, "--max-worst-sample-error", "Largest error that any sample may have. A convention."
    )
    kl_mean: float = _divergence(
        1e-2,
        "--max-kl",
        "How far a classifier's probabilities may lie from fp64's (KL, mean over rows). At 0.01 no probability "
        "differs by more than 7% on average (Pinsker); a language model in six-bit weights lies at 0.005.",
    )
    kl_p99: float = _divergence(1e-1, "--max-kl-p99", "The same for 99 of 100 rows. A convention.")
    loss_rel_error: float = _error(
        5e-2, "--max-loss-error", "Largest error of the loss, relative to it, to allow in training. A convention."
    )

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if not 0 <= value <= limit.most:
                raise UsageError(f"{limit.flag} is {limit.kind}, not {value:g}")


LIMITS: Mapping[str, Limit] = MappingProxyType({each.name: each.metadata["limit"] for each in fields(Budget)})
"""What the command line says of each limit of a budget, by the name of the limit."""
LEAST_KEPT = 0.98
"""The least share of an update that must arrive: a convention. What is lost is lost in every step, as by a learning
rate that is so much smaller in these directions; 2% is what comparisons call unchanged."""
LEAST_KEPT_OF_A_TENSOR = 0.9
"""What `LEAST_KEPT` is of all, of one tensor that carries 1% of the update's square or more."""
MOST_SWALLOWED = 0.02
"""The most of an update's square that may be in weights that never move, whatever else rounds up: the same 2%."""
ROOM = 32
"""So many times smaller updates must still move the weights that carry them: those of the trainings in docs/advice.md
were up to thirty times smaller when these settled than when they began. Chosen after that was seen, then asked of other
trainings ("Held out" there); a convention, too.
"""
MOST_BIAS = 0.1
"""The most that errors of gradients may have in common over batches, of the noise of a batch: a convention."""
LEAST_BIAS = 0.02
"""A bias below this share of the gradient changes an update by less than it may lose."""
OF_A_TENSOR = 5
"""How many times the error of all gradients that of one tensor may be which has 1% of their norm or more: as with what
is kept, 10% against 2%."""
MOST_OVER_SPREAD = 0.2
"""The largest error of an output that is no classifier's, of what its rows differ by: a convention. At a fifth, 4% of
the variance that tells rows apart is rounding. bf16 makes it 0.05 at most in the built-in networks."""
MOST_UNSCALING = 1.0
"""By how much a loss may have to be divided for its gradients to be finite: a scale is to lift gradients into the range
of fp16, and what must be lowered before the first step leaves it as it grows. A convention."""
MOST_OF_RANGE = 1.0
"""The largest value, of the largest number of the dtype that must hold it. This is arithmetic."""
MOST_STALL = 0.1
"""How far running statistics may stop from those of batches, of themselves: a convention. Two BatchNorms after linear
layers, 400 steps of SGD, statistics rounded to bf16, held-out loss as times that with fp32 statistics: inputs whose
means are one standard deviation from zero 1.00 at 0.02 (momentum 0.1), 1.02 at 0.1, 1.25 at 0.2 (momentum 0.01), five
standard deviations 1.00, 1.8 and 2.5; around zero 1.00 up to 0.4."""
