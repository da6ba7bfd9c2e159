"""What a step over lists gives, held against the int8 step over the whole vocabulary.

Shapes: R rows of one source, L symbols of its list, V target vocabulary.

Both compute the same logits, so nothing is left to judgement: the list's log-probabilities are the others with the
list's own normalizer, and all that is not the output layer's is equal to the bit.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from export.comparison import Agreement, Worst, relative_error
from export.plan import TOLERANCE, VerificationPlan
from export.probes import Array, Script, ScriptedStep, Trace, play
from runtime import graph_io
from runtime.stepper import Ids, Stepper

LOG_PROBS, FORCED_LOG_PROBS = "log_probs", "forced_log_probs"


def compare_lists(
    plan: VerificationPlan,
    stepper: Stepper,
    scripts: Sequence[Script],
    full: Sequence[Trace],
    positional: Mapping[str, int],
    random: np.random.Generator,
) -> tuple[Agreement, list[str]]:
    """Plays every script alone and in batches of every size.

    Args:
        stepper: over lists.
        full: what the step over the whole vocabulary gave for each script.
        positional: of the state tensors that have one, the axis of source positions.

    Returns:
        The errors, and a line for everything that must not be.
    """
    alone = [play(stepper, [script], positional)[0] for script in scripts]
    agreement = Agreement()
    for script, found, expected in zip(scripts, alone, full, strict=True):
        _compare(agreement, script, found, expected)
    lines = agreement.differences(_allowed, must_be_invariant=False)
    for size in plan.batch_sizes:
        chosen = [int(index) for index in random.permutation(len(scripts))[:size]]
        traces = play(stepper, [scripts[index] for index in chosen], positional)
        agreement.compare_bits(traces, [alone[index] for index in chosen], f"in a batch of {size}")
    if not _in_order(stepper, scripts):
        lines.append("step/candidate_ids: not in falling order of log-probability, ties by the lower id")
    return agreement, [*lines, *agreement.variation_lines()]


def _compare(agreement: Agreement, script: Script, found: Trace, expected: Trace) -> None:
    listed: Ids = found[f"encoder/{graph_io.SHORTLIST_IDS}"]
    for key, values in expected.items():
        moment, _, name = key.partition("/")
        if name not in (LOG_PROBS, FORCED_LOG_PROBS):
            _note(agreement, f"list/{name}", 0.0 if np.array_equal(found[key], values) else np.inf, moment)
    for number, step in enumerate(script.steps):
        moment = f"step {number + 1}"
        of_list, of_forced = _of_list(expected, moment, listed, step)
        log_probs: Array = found[f"{moment}/{LOG_PROBS}"]
        forced: Array = found[f"{moment}/{FORCED_LOG_PROBS}"]
        is_candidate = np.isin(np.arange(log_probs.shape[1]), listed)
        only_listed = (np.isfinite(log_probs) == is_candidate).all()
        error = relative_error(log_probs[:, listed], of_list) if only_listed else np.inf
        _note(agreement, f"list/{LOG_PROBS}", error, moment)
        own = np.isin(step.forced_ids, listed)
        same = np.array_equal(forced[own], log_probs[own, step.forced_ids[own]])
        error = relative_error(forced, of_forced) if same else np.inf
        _note(agreement, f"list/{FORCED_LOG_PROBS}", error, moment)


def _of_list(expected: Trace, moment: str, listed: Ids, step: ScriptedStep) -> tuple[Array, Array]:
    """Log-probabilities [R, L] of the list alone, and [R] of what is forced, beside the list where it is not in it."""
    log_probs = expected[f"{moment}/{LOG_PROBS}"].astype(np.float64)
    normalizer = np.logaddexp.reduce(log_probs[:, listed], axis=1)
    forced = np.take_along_axis(log_probs, np.maximum(step.forced_ids, 0)[:, None], axis=1)[:, 0]
    total = np.where(np.isin(step.forced_ids, listed), normalizer, np.logaddexp(normalizer, forced))
    return log_probs[:, listed] - normalizer[:, None], np.where(step.forced_ids < 0, 0.0, forced - total)


def _in_order(stepper: Stepper, scripts: Sequence[Script]) -> bool:
    """Whether a first step gives all symbols of the lists, the most probable first."""
    state = stepper.encode([script.source for script in scripts])
    starts = np.concatenate([script.steps[0].previous_ids for script in scripts])
    output, _ = stepper.step(state, starts, num_candidates=stepper.vocabulary_size)
    order = np.lexsort((output.candidate_ids, -output.candidate_log_probs), axis=1)
    return bool((order == np.arange(order.shape[1])).all())


def _note(agreement: Agreement, name: str, error: float, where: str) -> None:
    if error > agreement.errors.setdefault(name, Worst()).error:
        agreement.errors[name] = Worst(error, where)


def _allowed(name: str) -> float:
    return TOLERANCE


def list_errors(agreement: Agreement) -> Mapping[str, Worst]:
    """The log-probabilities' errors, as the certificate names them; all others are 0."""
    names = (LOG_PROBS, FORCED_LOG_PROBS)
    return {f"list/{name}": agreement.errors[f"list/{name}"] for name in names}
