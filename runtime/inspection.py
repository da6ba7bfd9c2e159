"""The inner quantities of a decoder's steps, under the names that the papers give them.

A watched stepper fills a record at every step: training/model/inspection.py watches a model in PyTorch,
runtime/onnx/inspection.py the graphs of a bundle. What a model or its graphs don't have is absent.

Shapes: T steps, S source positions, L layers, H decoder size, D memory size, A key size, C context size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.bundle.tokenizer import Tokenizer, UnknownTokenError
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import NO_ID, Floats, Stepper

Record = dict[str, Any]
"""The quantities of one step, by the names of `Inspection`; those of layers as lists, gates as `gates.input`."""

OF_SOURCE: Final = ("memory", "keys")
OF_POSITIONS: Final = ("scores", "weights")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inspection:
    """The inner quantities of decoding one source to one target, float32.

    Equations are those of Bahdanau et al. (2015, arXiv 1409.0473, section 3.1 and appendix A), which write i for the
    step and j for the source position; of Luong et al. (2015, arXiv 1508.04025, section 3.1), which write t and s; and
    of See et al. (2017, arXiv 1704.04368). Quantities that the model or the bundle's graphs don't have are None: int8
    graphs hold keys, memory and some states as codes.

    Attributes:
        source_tokens: S, the end symbol included if the model reads one.
        target_tokens: T, the end symbol included if the target ends with it.
        log_probs: [T] log P of each target token given the ones before.
        memory: [S, D] h_j, the encoder's states that the context is made of (Bahdanau's annotations).
        keys: [S, A] what the query is compared with: U h_j of additive scores (Bahdanau, A.1.2), W h_s of general ones
            (Luong, eq. 8); the memory itself for a plain dot product.
        hidden: [T, L, H] s_i, the decoder's state after the step (Luong's h_t); the last layer is the top one.
        cell: [T, L, H] an LSTM's cell after the step.
        gates: by name, [T, L, H]: input, forget, candidate and output of an LSTM; reset, update and candidate of a GRU
            (r, z and the proposed state of Bahdanau, A.1.1). Empty for a tanh RNN.
        query: [T, A] the decoder state as it is compared: W s_{i-1} (Bahdanau, A.1.2), or the state h_t (Luong).
        scores: [T, S] e_ij, before the softmax (Bahdanau, eq. 6; Luong's score, eq. 8). Masked positions have scores,
            too.
        weights: [T, S] alpha_ij, the softmax of the scores (Bahdanau, eq. 6; Luong's a_t(s), eq. 7).
        context: [T, C] c_i, the mean of the memory by the weights (Bahdanau, eq. 5; Luong's c_t).
        p_gen: [T] the probability of generating instead of copying (See, eq. 8).
    """

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    log_probs: Floats
    memory: Floats | None = None
    keys: Floats | None = None
    hidden: Floats | None = None
    cell: Floats | None = None
    gates: dict[str, Floats]
    query: Floats | None = None
    scores: Floats | None = None
    weights: Floats | None = None
    context: Floats | None = None
    p_gen: Floats | None = None

    def __repr__(self) -> str:
        """Returns the names and shapes, one a line."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        arrays |= {f"gates[{name!r}]": value for name, value in self.gates.items()}
        head = f"<inspection of {' '.join(self.source_tokens)} -> {' '.join(self.target_tokens)}"
        return "\n  ".join([head, *(f"{name} {list(value.shape)}" for name, value in arrays.items())]) + ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model whose steps are watched.

    Attributes:
        stepper: fills `record` at every step, for its first row.
        encoder_ids: returns the encoder's input for a source's tokens.
        max_length: of an answer, in tokens.
        has_mask: attention can be kept from positions.
    """

    stepper: Stepper
    record: Record
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    special_ids: SpecialIds
    encoder_ids: Callable[[Sequence[int]], list[int]]
    max_length: int
    has_mask: bool

    def inspect(
        self, source: str | Sequence[str], target: str | Sequence[str] | None, masked_source_positions: Sequence[int]
    ) -> Inspection:
        """Decodes a source: to a given target and its end, or greedily.

        Args:
            source, target: texts or tokens; if the target is None, the model's own greedy answer.
            masked_source_positions: as the option of that name of the API.

        Raises:
            UserError: an empty source, unknown tokens, or positions that the source does not have.
        """
        eos = self.special_ids.eos
        own_ids = _ids("source", source, self.source_tokenizer)
        if not own_ids:
            raise UserError("source: is empty, must have a token at least")
        source_ids = self.encoder_ids(own_ids)
        forced = None if target is None else [*_ids("target", target, self.target_tokenizer), eos]
        masked = sorted(set(masked_source_positions))
        if masked and not (masked[0] >= 0 and masked[-1] < len(source_ids) and len(masked) < len(source_ids)):
            raise UserError(
                f"masked_source_positions: is {masked}, must be places from 0 to {len(source_ids) - 1}, not all of them"
            )
        state = self.stepper.encode([source_ids], [masked]) if masked else self.stepper.encode([source_ids])
        previous, target_ids, log_probs = self.special_ids.start, list[int](), list[float]()
        steps: list[Record] = []
        for wanted in [NO_ID] * (self.max_length + 1) if forced is None else forced:
            self.record.clear()
            output, state = self.stepper.step(
                state, np.array([previous]), num_candidates=1, forced_ids=np.array([wanted]), attention=True
            )
            weights = {} if output.attention is None else {"weights": output.attention[0]}
            steps.append(weights | self.record)
            is_free = wanted == NO_ID
            previous = int(output.candidate_ids[0, 0]) if is_free else wanted
            target_ids.append(previous)
            log_probs.append(float((output.candidate_log_probs[0] if is_free else output.forced_log_probs)[0]))
            if previous == eos:
                break
        if forced is None and previous != eos:  # cut at the maximum length: the last step only showed that it goes on
            for each in (steps, target_ids, log_probs):
                each.pop()
        values = _stacked(steps, len(source_ids))
        gates = {name.removeprefix("gates."): values.pop(name) for name in list(values) if name.startswith("gates.")}
        return Inspection(
            source_tokens=tuple(self.source_tokenizer.tokens_of(source_ids)),
            target_tokens=tuple(self.target_tokenizer.tokens_of(target_ids)),
            log_probs=np.array(log_probs, np.float32),
            gates=gates,
            **values,
        )


def _ids(field: str, value: str | Sequence[str], tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, str):
        if not tokenizer.takes_texts:
            raise UserError(
                f"{field}: is a text, must be tokens: this model's texts are segmented by its user's program"
            )
        return list(tokenizer.encode(value))
    try:
        return list(tokenizer.ids_of(list(value)))
    except UnknownTokenError as error:
        unknown = ", ".join(repr(value[place]) for place in error.positions[:4])
        raise UserError(f"{field}: has tokens that are not in the vocabulary: {unknown}") from None


def _stacked(steps: Sequence[Record], num_positions: int) -> dict[str, NDArray[np.float32]]:
    """Returns the quantities of all steps; those of the source once, of its valid positions."""
    values = {}
    for name in steps[0]:
        rows = [np.asarray(step[name], np.float32) for step in steps]
        if name in OF_SOURCE:
            values[name] = rows[0][:num_positions]
        else:
            values[name] = np.stack([row[:num_positions] if name in OF_POSITIONS else row for row in rows])
    return values
