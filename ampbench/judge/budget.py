"""How much error a precision may bring: what options, settings files and advice share, without what judges by it."""

from dataclasses import dataclass

from ampbench.errors import UsageError


@dataclass(frozen=True, kw_only=True)  # no slots: the class' attributes are the defaults of the command line
class Budget:
    """How much error a precision may bring; the name of each limit is the column that it bounds.

    No non-finite output and, in training, no non-finite parameter, no step skipped once GradScaler's scale has settled
    and no loss of updates (`objections.update_objection`) are not negotiable. Of single parameters with 1% of
    the gradients' norm, `objections.OF_A_TENSOR` times the error of all is allowed.
    The other defaults and their sources:

    * `output_rel_l2` 2e-2, of the output that errs most: `torch.testing.assert_close` accepts 1.6e-2 (relative) for
      bf16. The error of merely rounding a reference output to bf16 is 1.6e-3 on real networks, healthy autocast is
      three to ten times that.
    * `sample_p99_rel_l2` 5e-2 and `sample_worst_rel_l2` 2e-1: conventions, 2.5 and ten times what is allowed of all
      samples together, of which 0.25% may lie at ten times that before all of it is used up.
    * `kl_mean` 1e-2 nats: by Pinsker's inequality the probability of nothing then differs by more than 7% on average.
      LLaMA 3 8B lies 5.5e-3 from itself in six-bit and 1.1e-2 in five-bit weights (llama.cpp, examples/perplexity).
      `kl_p99` 1e-1: a convention, ten times that (22% by Pinsker).
    * `loss_rel_error` 5e-2: a convention.
    * `argmax_agreement` 0.99: MLPerf Inference asks for 99% of the fp32 accuracy (Reddi et al., 2020); at 99%
      agreement the accuracy cannot have moved by more than one point. Judged beyond chance, see
      `objections.agreement_fails`.
    * `grad_rel_l2` 1e-1: at the critical batch size the noise of a minibatch gradient is as large as the gradient
      (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018). An independent error of a tenth of it
      adds 0.5% in quadrature.
    * `grad_flushed_share` 1e-2: Micikevicius et al., "Mixed Precision Training" (2018), section 3.1, report harm where
      about 5% of the gradients became zero; a fifth of that leaves room. Counted beyond what fp32 flushes itself.

    Raises `UsageError` for a limit that is negative, not a number, or an agreement above 1.
    """

    output_rel_l2: float = 2e-2
    argmax_agreement: float = 0.99
    grad_rel_l2: float = 1e-1
    grad_flushed_share: float = 1e-2
    sample_p99_rel_l2: float = 5e-2
    sample_worst_rel_l2: float = 2e-1
    kl_mean: float = 1e-2
    kl_p99: float = 1e-1
    loss_rel_error: float = 5e-2

    def __post_init__(self) -> None:
        shares = {"--min-argmax-agreement": self.argmax_agreement, "--max-flushed-share": self.grad_flushed_share}
        errors = {
            "--max-error": self.output_rel_l2,
            "--max-gradient-error": self.grad_rel_l2,
            "--max-sample-error": self.sample_p99_rel_l2,
            "--max-worst-sample-error": self.sample_worst_rel_l2,
            "--max-loss-error": self.loss_rel_error,
        }
        divergences = {"--max-kl": self.kl_mean, "--max-kl-p99": self.kl_p99}
        for flag, value in shares.items():
            if not 0 <= value <= 1:
                raise UsageError(f"{flag} is a share between 0 and 1, not {value:g}")
        for flag, value in errors.items():
            if not value >= 0:
                raise UsageError(f"{flag} is a relative error of 0 or more, not {value:g}")
        for flag, value in divergences.items():
            if not value >= 0:
                raise UsageError(f"{flag} is a divergence of 0 nats or more, not {value:g}")
