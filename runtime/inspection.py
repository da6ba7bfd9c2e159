"""The inner quantities of a decoder's steps, under the names that the papers give them.

A watched stepper fills a record at every step: training/model/inspection.py watches a model in PyTorch,
runtime/onnx/inspection.py the graphs of a bundle. Quantities that a model or its graphs don't have are absent.

Shapes: T steps, S source positions, L layers, H decoder size, D memory size, A key size, C context size.
"""

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from attendant.runtime.stepper import Floats

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
        keys: [S, A] the vectors that the query is compared with: U h_j of additive scores (Bahdanau, A.1.2), W h_s of
            general ones (Luong, eq. 8); the memory itself for a plain dot product.
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
