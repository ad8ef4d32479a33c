"""The words of studies' conclusions: a plain line for each code, spelled as in `show.wording`."""

from collections.abc import Iterable, Mapping

from ampbench.core.statement import Statement
from ampbench.show import wording

_ERRORS = (
    "{output_rel_l2:if|; output error |error|}{output_rel_l2_fp32:if| (|error| from fp32 inputs)|}"
    "{grad_rel_l2:if|; gradient error |error|}{grad_rel_l2_fp32:if| (|error|)|}"
)
_STEP = "a step takes {after:s}, not {before:s}: {ratio:ratio} as long{low:if| (95%: |.3f|}{high:if| to |.3f|)}"
_TIMES = "{ratio:ratio} {low:if|(95%: |.2f|}{high:if| to |.2f|) }the time of"
TEMPLATES: Mapping[str, str] = {
    "timing-faster": _STEP,
    "timing-slower": _STEP,
    "timing-same": f"{_STEP}: no certain difference",
    "timing-noisy": "step times are too noisy to compare: builds of one step differ by more than {widest:g} times",
    "timing-busy": "do not trust the times: other work took {share:share} of the CPU",
    "storage-raises": "the step does not run with inputs in {dtype}: {error}",
    "storage-same": (
        "nothing is lost: with inputs in {dtype}, {what} are the same to the last bit"
        "{held:only|: {dtype} holds these inputs exactly}{commutes:only|: what reads them commutes with rounding}"
    ),
    "storage-lost": f"information is lost: with inputs in {{dtype}}, {{what}} differ{_ERRORS}",
    "storage-unrepeatable": f"equal bits cannot be expected, as the step itself does not repeat its own{_ERRORS}",
    "storage-exact": (
        f"{{dtype}} holds these inputs exactly, but {{what}} differ, as ops compute in {{dtype}} then{_ERRORS}"
    ),
    "casts-none": "no casts: {precision} runs without autocast",
    "casts-made": (
        "{casts:counted;cast} {forward:only|in the forward pass (backward pass not traced)}{forward:else|a step}, "
        "{bytes:B}{share:if|, |share| of the traced time}{step:if|, about |s| untraced}"
        "{fake:only| (fake tensors, not on hardware)}"
    ),
    "casts-promoted": (
        "{ops:counted;op} {ops:verb;converts;convert} {inputs:counted;input} inside, {bytes:B}: copies on a CPU, "
        "fused on a GPU"
    ),
    "casts-saved": "{casts:counted;cast} could be saved",
    "casts-step": "the step takes {seconds:s} untraced (median of {builds:counted;build})",
    "casts-weights": (
        "{uses:counted;use of a weight;uses of weights}: {cast} cast, {reused} reused from autocast's cache, {idle} "
        "not needed; the cache {cache:if|keeps |B| alive until autocast's region ends}{cache:else|holds nothing}"
    ),
    "casts-tried": (
        "{casts:counted;cast} a step fewer, {bytes:B}; outputs "
        "{identical:only|are the same to the last bit}{identical:else|differ}"
        "{before:if|; peak memory |B|}{after:if| → |B|}"
    ),
    "casts-graph": (
        "{casts:counted;cast} where eager mode makes {eager}{kept:if|, || kept}{fused:if|, || fused}"
        "{folded:if|, || folded}"
    ),
    "casts-no-graph": "not made: {error}",
    "casts-inside": "{op}: {given} in, {made} out, cast inside {count:counted;op} and in no count",
    "casts-unseen": "casts inside {names} are not seen ({ops:counted;op})",
    "casts-as-one": "counted as the single op that {device} has for it: {name} ({calls:counted;call}), {kernel}",
    "casts-apart": "fake tensors take {name} apart: {device} may run it whole, with fewer casts",
    "ceiling-ratio": "{ratio:ratio} fp32's rate{emulated:only| (emulated)}",
    "ceiling-traffic": "as many values are copied in {ratio:ratio} the time of fp32",
    "ceiling-disturbed": (
        "other work used up to {share:share} of the CPU during {which:if|||}{which:else|all measurements}: do not "
        "trust them, measure again"
    ),
    "headroom-nothing": "no module gave a floating value, so nothing can be predicted",
    "headroom-overflows": (
        "{count:,} of {modules:counted;module} would overflow (worst {worst}: largest {values} is {reach:.5g} times "
        "what {dtype} holds)"
    ),
    "headroom-fits": "nothing in {modules:counted;module} would overflow{flush:only| or flush}",
    "headroom-flushes": "{count:,} would flush ({names})",
    "headroom-near": "{count:,} {count:verb;comes;come} within a factor {margin} of overflow ({names})",
    "headroom-unscaled": (
        "{flushed:else|gradients need no loss scale}"
        "{flushed:if|no loss scale saves the |share| of gradients that flush}"
    ),
    "headroom-scale": (
        "loss scale {lowest}{highest:if| to ||} {flushed:if|loses the fewest gradients, |share|}"
        "{flushed:else|keeps every gradient}{unscaled:if|, |share| are lost without it}; the largest is in {limiting}"
    ),
    "headroom-swallowed": "stored in {dtype}, {share:share} of the weights that steps move would stand still",
    "headroom-raised": "the step ended with an error, so that it was not seen as a whole: {error}",
    "headroom-stored": (
        "{names} {count:verb;overflows;overflow} as stored in {dtype}"
        "{step:if|, so that outputs are not finite in the forward pass of step |,|}"
        "{step:else|, and the outputs are finite all the same}"
    ),
    "headroom-first": "{first}",
    "headroom-nonfinite": "outputs are not finite from step {step:,} on, and no op turns finite values into such",
    "headroom-finite": "all values of the whole step are finite",
    "headroom-unseen": "the whole step was not seen",
    "headroom-seen": "{event} predicted in {predicted:counted;module}, seen in {seen:,}",
    "headroom-gradients": (
        "gradients{scale:if| at loss scale ||}: {predicted:share} predicted to flush, {seen:share} seen"
        "{nonfinite:if|; not finite in |,|}{parameters:if| of |counted;parameter|}"
    ),
    "origin-nothing": "nothing could be compared: no module gave a floating value",
    "origin-output": "the output error is {error:error} against {reference} (relative L2)",
    "origin-undefined": "the output's error is undefined{strange:only|, as values are not finite}",
    "origin-overflows": (
        "{names} {count:verb;overflows by itself;overflow by themselves} ({count:,} of {modules:counted;module})"
    ),
    "origin-handed": "{names} {count:verb;is;are} handed what overflows ({count:,} of {modules:counted;module})",
    "origin-flushes": (
        "{names} {count:verb;flushes;flush} at least {least:share} of {count:verb;its;their} outputs to zero "
        "({count:,} of {modules:counted;module})"
    ),
    "origin-kept": (
        "kept in fp32 alone, {module} {share:if|lowers the error of the output most, by |share|, to }"
        "{share:else|makes the output finite, with an error of }{error:error}{then:if|; then come ||}"
    ),
    "origin-spread": "no module alone matters: {module}, the first to keep in fp32, takes {share:share} off the error",
    "origin-worst": "most by themselves err {names}, by up to {error:error}",
    "origin-exact": "no module has an error of its own",
    "origin-first": "in the whole run {first}",
    "origin-left-out": "{count:,} of {modules:counted;module} not compared: {reasons}",
    "keep-found": "keep {units:,} of {modules:counted;module} in fp32: {names}",
    "keep-nothing": "no module need be kept in fp32",
    "keep-whole": "run the network in fp32: nothing less meets the budget",
    "keep-missed": (
        "{untried:else|no set of modules kept in fp32}{untried:only|no set that was tried} meets the budget "
        "({trials:counted;trial})"
    ),
    "keep-unfinished": (
        "the search did not end: {trials:counted;trial} made, {names:else|none meets the budget}"
        "{names:if|the smallest set so far that meets the budget: ||}"
    ),
    "keep-closest": "closest to the budget: {names} kept{why:if|; a step raised ||}",
    "keep-error": (
        "{what} error against {reference}: {error:error}{before:if| (|error| with none kept)|}"
        "{nonfinite:if| (undefined with none kept: |counted;value| not finite)|}; budget {limit:error}"
    ),
    "keep-update": (
        "{share:if||kept| of the update arrives}{share:else|no share of the update is defined}{why:if| (||)}"
        "{nonfinite:if| (|counted;parameter element| not finite)|}{before:if| (|kept| with none kept)|}; "
        "budget {limit:share}"
    ),
    "keep-minimal": "no single module can be left out ({trials:counted;trial})",
    "keep-spent": (
        "single modules may still be left out: {trials:counted;trial} made, and no more allowed (--max-trials)"
    ),
    "keep-confirmed": (
        "confirmed on {batches:counted;other batch;other batches}: output error at most {error:error}"
        "{gradient:if|, gradient error at most |error|}"
    ),
    "keep-unconfirmed": "not confirmed on {more:only|more batches}{more:else|another batch}: {why}",
    "keep-time": f"with these modules kept, a step takes {_TIMES} a step with none kept",
    "keep-faster": f"with these modules kept, a step takes {_TIMES} a step in fp32",
    "keep-slower": f"fp32 is faster here: with these modules kept, a step takes {_TIMES} a step in fp32",
    "keep-untimed": (
        "the time in fp32 was not measured{why:if| (||)}: ampbench run measures a function whose network keeps these "
        "modules and fp32"
    ),
    "keep-peak": "peak memory {kept:B} with these modules kept{none:if|, |B| with none}{all:if|, |B| with all}",
    "keep-reference": "errors are against fp32, as the fp64 reference failed: {why}",
    "scope-recommended": "recommended by PyTorch",
    "scope-raises": "raises: {error}",
    "scope-stale": (
        "from step {step} on, {weights:counted;weight} {weights:verb;is;are} stale: read as "
        "{weights:verb;a copy;copies} made before the optimizer's last step"
    ),
    "scope-casts": "{casts} casts a step, not {than}",
    "scope-time": "a step takes {ratio:ratio} as long (95%: {low:.2f} to {high:.2f})",
    "scope-peak": "peak memory {peak:B}, not {than:B}",
    "scope-grows": "memory grows by {growth:B} with each step",
    "scope-keeps": "{kept:B} kept from step to step",
    "scope-low-loss": "the loss is computed in {dtype}: give it its input in fp32",
    "scope-error": "error of the {what}: {error:error} against {reference}, not {than:error}",
    "scope-undefined": "no error of the {what} is defined, as values are not finite or have another shape",
    "scope-free": "no cost seen",
    "check-defects": (
        "{number:,} of {shown:counted;known defect} {shown:verb;is;are} here: {training:,} matter for training, "
        "{inference:,} for inference{traps:if|; |counted;trap| by design}"
    ),
    "check-unasked": (
        "no run here has looked for known defects of torch {version} on this processor: `ampbench check` does"
    ),
    "check-shown": "what to do about them: {commands}",
    "check-error": (
        "{cases:counted;case} failed with an error that is known: `ampbench check {check}` looks for that in this "
        "torch ({title})"
    ),
    "check-unmoved": (
        "{cases:counted;case} left most bf16 weights where they were: `ampbench check {check}` looks for that in this "
        "torch ({title})"
    ),
    "check-called": (
        "{cases:counted;case} called {op}: `ampbench check {check}` looks for that in this torch ({title})"
    ),
    "rules-disagree": (
        "documents, dispatcher and observation disagree about {number:,} of {ops:counted;op}{kinds:if|: ||}"
    ),
    "rules-not-probed": "autocast could not be probed: {error}",
    "training-flat": (
        "{learns:only|hardly learns}{learns:else|does not learn}: {metric} is {value:.4g}, before training "
        "{before:.4g}: train for longer, or at another learning rate, to conclude"
    ),
    "training-scale-needed": "fp16 needs loss scaling here; {setting} serves, it trains as fp32 does",
    "training-scale-needless": "fp16 needs no loss scaling here: without it, it trains as fp32 does",
    "training-trains": "{count:verb;trains;train} as fp32 does",
    "training-fails": "{count:verb;does;do} not train as fp32 does",
    "training-open": "inconclusive",
    "training-broke": ("{what}{error:if| ||}{step:if| from step |,|} in {seeds} of {of:counted;seed}{first:if|: ||}"),
    "training-apart": (
        "{metric} is {by:.2f}{unit} {less:only|lower}{less:else|higher} than fp32's"
        "{low:if| (90%: |+.2f|}{high:if| to |+.2f|)}"
    ),
    "training-within": "{metric} within {margin:.2g}{unit}",
    "training-seeds": (
        "{seeds:if|about || seeds would decide}"
        "{margin:if|too near the margin of |.2g|}{unit}{margin:if| for any number of seeds}"
    ),
    "training-one-start": (
        "{one:only|one seed shows no spread: it takes two, better three or more (--seeds)}"
        "{one:else|every seed gave the same weights and batches: do not seed in the function that makes the workload}"
    ),
    "training-no-ratio": "nothing to compare with: fp32's loss ends at 0 or does not fall, or came to no end",
    "training-inexact": "ends elsewhere than fp32{control:only|, so that no verdict is given}",
}


def lines(statements: Iterable[Statement]) -> list[str]:
    """Return statements in plain lines; consecutive statements on a subject share a line behind its name."""
    groups: list[tuple[str, list[str]]] = []
    for statement in statements:
        text = wording.spelled((TEMPLATES.get(statement.code) or wording.TEMPLATES[statement.code]), statement.facts)
        if groups and statement.subject and statement.subject == groups[-1][0]:
            groups[-1][1].append(text)
        else:
            groups.append((statement.subject, [text]))
    return [": ".join(filter(None, [subject, "; ".join(texts)])) for subject, texts in groups]
