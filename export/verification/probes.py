"""Teacher-forced probes: sources, their steps, and a stepper's trace of them.

Shapes: R rows of one source, S source positions, V target vocabulary, N bans.

A probe contains everything about one source. So the same probe can be traced alone and in any batch, by the graphs and
by PyTorch, and the traces be compared.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attendant.runtime.bundle.graph_io import position_axis
from attendant.runtime.bundle.manifest import GraphPair, Manifest
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID
from attendant.runtime.errors import UserError, shown
from attendant.runtime.onnx.stepper import narrowed
from attendant.runtime.stepper import Array, DecoderState, Ids, Stepper


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationPlan:
    """The grid of a certificate.

    Attributes:
        batch_sizes: numbers of sources stepped together; each source must give the same results in all of them.
        source_lengths: taken in turn, so that every batch has unequal lengths.
        beam_sizes: rows per source, taken in turn; and the beams of the decodings.
        num_steps: teacher-forced steps, between which each source's rows are reordered, repeated and dropped.
        num_decoded: sources decoded by both sides and compared token for token, per beam size.
        num_alone: number of these that are also decoded alone, and compared bit for bit.
        max_length: of the decodings.
    """

    batch_sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 16, 33, 64)
    source_lengths: tuple[int, ...] = (80, 1, 13, 8, 2, 40, 7, 9, 24, 3, 64, 17, 5, 31, 16, 57, 11)
    beam_sizes: tuple[int, ...] = (1, 2, 4, 5)
    num_steps: int = 6
    num_decoded: int = 96
    num_alone: int = 16
    max_length: int = 40


FULL_PLAN = VerificationPlan()


def checked_plan(plan: VerificationPlan) -> VerificationPlan:
    """Returns the plan. Raises UserError: it is of another type."""
    if not isinstance(plan, VerificationPlan):
        raise UserError(f"plan={shown(plan)}: must be a VerificationPlan, or be left out")
    return plan


Trace = Mapping[str, Array]
"""A stepper's results for one source, such as "step 1/log_probs" -> values at valid positions and rows."""

MAX_BANNED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStep:
    """One step of a source's rows, int64.

    Attributes:
        rows: [R] the source's rows before the step that continue: reordered, repeated, dropped.
        previous_ids, forced_ids, banned_ids: [R], [R] and [R, N]; -1 forces or bans none.
    """

    rows: Ids
    previous_ids: Ids
    forced_ids: Ids
    banned_ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A source and its teacher-forced steps."""

    source: Sequence[int]
    steps: tuple[ProbeStep, ...]


def write_probes(
    plan: VerificationPlan, manifest: Manifest, real_sources: Sequence[Sequence[int]], random: np.random.Generator
) -> list[Probe]:
    """Returns the probes of the largest batch: lengths and beams in turn, symbols at random.

    Every second probe takes one of the real sources, if there is one of its length. There are two at least, because
    int8 is measured by the distance between sources.
    """
    probes = []
    by_length = {len(source): source for source in real_sources}
    for number in range(max(2, *plan.batch_sizes)):
        length = plan.source_lengths[number % len(plan.source_lengths)]
        source = by_length.get(length) if number % 2 else None
        if source is None:
            source = random_source(manifest, length, random)
        beam_size = plan.beam_sizes[number % len(plan.beam_sizes)]
        probes.append(Probe(source=source, steps=_write_steps(plan, manifest, beam_size, random)))
    return probes


def random_source(manifest: Manifest, length: int, random: np.random.Generator) -> list[int]:
    """Returns a source of `length` symbols, some of them unknown, that begins and ends as the bundle's sources do."""
    symbols = np.array([UNK_ID, *range(len(SPECIAL_TOKENS), manifest.source.vocabulary_size)])
    source: list[int] = random.choice(symbols, length).tolist()
    if manifest.source.append_eos:
        source[-1] = manifest.special_ids.eos
    if manifest.source.prepend_bos:
        source[0] = manifest.special_ids.bos
    return source


def _write_steps(
    plan: VerificationPlan, manifest: Manifest, beam_size: int, random: np.random.Generator
) -> tuple[ProbeStep, ...]:
    vocabulary_size, steps, num_rows = manifest.target.vocabulary_size, [], 1
    for number in range(plan.num_steps):
        rows = random.integers(0, num_rows, beam_size) if number else np.zeros(1, np.int64)
        num_rows = len(rows)
        start = np.full(num_rows, manifest.special_ids.start)
        banned = random.integers(-1, vocabulary_size, (num_rows, random.integers(1, MAX_BANNED + 1)))
        steps.append(
            ProbeStep(
                rows=rows,
                previous_ids=random.integers(len(SPECIAL_TOKENS), vocabulary_size, num_rows) if number else start,
                forced_ids=random.integers(-1, vocabulary_size, num_rows),
                banned_ids=banned,
            )
        )
    return tuple(steps)


def trace_probes(
    stepper: Stepper, probes: Sequence[Probe], graphs: GraphPair, started_from: Sequence[Trace] | None = None
) -> list[Trace]:
    """Steps probes together.

    Args:
        graphs: of the stepper, or of the model that it runs: their shapes show the axes of source positions.
        started_from: another stepper's traces of the same probes. Every step starts from their row tensors, so a
            difference is the step's own error, without earlier errors, which a recurrence may amplify. (The decodings
            show how errors add up.)

    Returns:
        One trace per probe, in order.
    """
    names = {tensor.input for tensor in graphs.state}
    specs = [spec for spec in graphs.decoder_step.inputs if spec.name in names]
    positional = {spec.name: axis for spec in specs if (axis := position_axis(spec)) is not None}
    traces: list[dict[str, Array]] = [{} for _ in probes]
    state = stepper.encode([probe.source for probe in probes])
    for name, tensor in _arrays(state.source_tensors).items():
        for trace, values, length in zip(traces, tensor, state.source_lengths, strict=True):
            # The values of one source have one axis fewer.
            trace[f"encoder/{name}"] = narrowed(values, positional[name] - 1, length) if name in positional else values
    _record_rows(traces, "encoder", state, _arrays(state.row_tensors), positional)
    for number in range(len(probes[0].steps)):
        steps = [probe.steps[number] for probe in probes]
        if started_from is not None:
            state = _started_from(started_from, state, f"step {number}" if number else "encoder", positional)
        state = _select(stepper, state, steps)
        output, state = stepper.step(
            state,
            np.concatenate([step.previous_ids for step in steps]),
            num_candidates=stepper.vocabulary_size,
            forced_ids=np.concatenate([step.forced_ids for step in steps]),
            banned_ids=np.concatenate([_widened(step.banned_ids, MAX_BANNED, -1) for step in steps]),
            attention=True,
        )
        values = {
            "log_probs": _by_id(output.candidate_ids, output.candidate_log_probs, stepper.vocabulary_size),
            "forced_log_probs": output.forced_log_probs,
            **_arrays(state.row_tensors),
        }
        if output.attention is not None:
            values["attention"] = output.attention
        _record_rows(traces, f"step {number + 1}", state, values, {**positional, "attention": 1})
    return list(traces)


def _started_from(
    traces: Sequence[Trace], state: DecoderState, moment: str, positional: Mapping[str, int]
) -> DecoderState:
    """Returns the state with the traces' row tensors, which hold valid positions only: padding is zero."""
    rows = {}
    for name, tensor in state.row_tensors.items():
        parts = [trace[f"{moment}/{name}"] for trace in traces]
        if (axis := positional.get(name)) is not None:
            parts = [_widened(part, tensor.shape[axis], 0, axis) for part in parts]
        values = np.concatenate(parts)
        rows[name] = torch.as_tensor(values, dtype=tensor.dtype) if isinstance(tensor, torch.Tensor) else values
    return dataclasses.replace(state, row_tensors=rows)


def _select(stepper: Stepper, state: DecoderState, steps: Sequence[ProbeStep]) -> DecoderState:
    """Applies every source's own row selection; rows are ordered by source."""
    counts = np.bincount(state.row_sources, minlength=state.num_sources)
    starts = np.cumsum(counts) - counts
    return stepper.select(state, np.concatenate([start + step.rows for start, step in zip(starts, steps, strict=True)]))


def _record_rows(
    traces: Sequence[dict[str, Array]],
    moment: str,
    state: DecoderState,
    values: Mapping[str, Array],
    positional: Mapping[str, int],
) -> None:
    for name, tensor in values.items():
        for source, trace in enumerate(traces):
            own = tensor[state.row_sources == source]
            trace[f"{moment}/{name}"] = narrowed(own, positional.get(name), state.source_lengths[source])


def _by_id(candidate_ids: Ids, log_probs: Array, vocabulary_size: int) -> Array:
    """Returns log-probabilities [R, V] in the vocabulary's order; -inf for symbols that are not candidates."""
    ordered = np.full((len(log_probs), vocabulary_size), -np.inf, log_probs.dtype)
    np.put_along_axis(ordered, candidate_ids, log_probs, axis=1)
    return ordered


def _widened(values: Array, width: int, padding: int, axis: int = 1) -> Array:
    added = [(0, width - size if number == axis else 0) for number, size in enumerate(values.shape)]
    return np.pad(values, added, constant_values=padding)


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the stepper's own arrays as numpy's; PyTorch's tensors are detached and copied to the CPU."""
    return {
        name: tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
        for name, tensor in tensors.items()
    }
