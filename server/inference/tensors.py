"""Tensors on the wire: texts are read from those of a request, and arrays are written into those of a response.

N texts, H hypotheses of the text that has most, T summands of the longest (its tokens, and EOS if it ended there), S
source tokens of the longest, W warnings of the text that has most. The rest is padding: empty strings and zeros, and a
score and log_prob of minus infinity for a missing hypothesis. A confidence is NaN if there is none.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from attendant.runtime.violations import Violations
from attendant.server.grpc.lists import MAX_REQUESTS
from attendant.server.inference.v2 import open_inference_pb2 as messages

MAX_DIMENSIONS: Final = 8
"""Limit of an input's shape. The product of more sizes may have any number of digits."""

LENGTH: Final = struct.Struct("<I")

PIECE: Final = 16_384
"""Limit of the numbers that are copied into a message before other threads may run."""

Answer = Mapping[str, Any]
"""The fields of one text's hypotheses, its source tokens, its warnings, and its trace as JSON."""


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor of ModelInfer's response.

    Attributes:
        datatype: BYTES or FP32.
        axes: the axes after N.
        of: returns the cells of one text's answer, nested like the axes.
        by_default: in the response if the request names no outputs.
    """

    datatype: str
    axes: str
    of: Callable[[Answer], Any]
    padding: Any
    by_default: bool = False


def _each(name: str) -> Callable[[Answer], Any]:
    return lambda answer: [hypothesis[name] for hypothesis in answer["hypotheses"]]


INPUT: Final = "text"
INPUT_PARAMETER, OUTPUT_PARAMETER = "binary_data_size", "binary_data"
"""Parameters of the extension for tensors in bytes. KServe's client also sends them over gRPC."""
OUTPUTS: Final = {
    "text": Output("BYTES", "H", _each("text"), "", by_default=True),
    "score": Output("FP32", "H", _each("score"), -np.inf, by_default=True),
    "log_prob": Output("FP32", "H", _each("log_prob"), -np.inf, by_default=True),
    "confidence": Output("FP32", "H", _each("confidence"), np.nan),
    "tokens": Output("BYTES", "HT", _each("tokens"), ""),
    "token_log_probs": Output("FP32", "HT", _each("token_log_probs"), 0.0),
    "attention": Output("FP32", "HTS", _each("attention"), 0.0),
    "source_tokens": Output("BYTES", "S", lambda answer: answer["source_tokens"], ""),
    "warnings": Output("BYTES", "W", lambda answer: answer["warnings"], ""),
    "trace": Output("BYTES", "", lambda answer: answer["trace"], ""),
}


def read_texts(request: messages.ModelInferRequest, violations: Violations) -> list[str]:
    """Returns the texts of the request's only input, or none if there are violations."""
    names = [tensor.name for tensor in request.inputs[:MAX_DIMENSIONS]]
    if not violations.require(names == [INPUT], "inputs", ", ".join(names), f"one tensor, named {INPUT}"):
        return []
    (tensor,) = request.inputs
    _refuse_parameters(tensor.parameters, INPUT_PARAMETER, f"inputs[{INPUT}]", violations)
    violations.require(tensor.datatype == "BYTES", f"inputs[{INPUT}].datatype", tensor.datatype, "BYTES")
    elements: Sequence[bytes] | None = tensor.contents.bytes_contents
    if raw := request.raw_input_contents:
        held = len(raw) == 1 and not elements
        violations.require(held, "raw_input_contents", len(raw), "the contents of each input, set nowhere else")
        elements = unpack(raw[0])
    if elements is None:
        violations.say("raw_input_contents[0]", "cut short", "texts, each behind its length in four bytes")
        return []
    if not 1 <= len(elements) <= MAX_REQUESTS:
        violations.say(f"inputs[{INPUT}]", f"of {len(elements)} elements", f"of 1 to {MAX_REQUESTS} elements")
    elif num_elements(tensor.shape) != len(elements):
        shown = str(list(tensor.shape[:MAX_DIMENSIONS]))
        violations.say(
            f"inputs[{INPUT}].shape", shown, f"that of {len(elements)} elements, at most {MAX_DIMENSIONS} long"
        )
    texts = []
    for place, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            violations.say(f"inputs[{INPUT}][{place}]", "no UTF-8", "a text in UTF-8")
    return texts


def num_elements(shape: Sequence[int]) -> int:
    """Returns the number of elements of a tensor with this shape, or -1 if the shape is not valid."""
    if not 1 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 1:
        return -1
    return math.prod(shape)


def pack(texts: Sequence[bytes]) -> bytes:
    """Returns the raw contents of a tensor: each text after its length."""
    return b"".join(LENGTH.pack(len(text)) + text for text in texts)


def unpack(raw: bytes) -> list[bytes] | None:
    """Returns the elements; None if they don't end with the bytes."""
    elements, place = [], 0
    while place + LENGTH.size <= len(raw):
        (length,) = LENGTH.unpack_from(raw, place)
        place += LENGTH.size
        elements.append(raw[place : place + length])
        place += length
    return elements if place == len(raw) else None


def read_outputs(request: messages.ModelInferRequest, violations: Violations) -> list[str]:
    """Returns the names of the requested outputs."""
    names = [output.name for output in request.outputs[: len(OUTPUTS) + 1]]
    violations.require(len(names) <= len(OUTPUTS), "outputs", len(request.outputs), f"at most {len(OUTPUTS)}")
    for place, name in enumerate(names):
        violations.require(name in OUTPUTS, f"outputs[{place}].name", name, f"one of {', '.join(OUTPUTS)}")
        _refuse_parameters(request.outputs[place].parameters, OUTPUT_PARAMETER, f"outputs[{place}]", violations)
    return names or [name for name, output in OUTPUTS.items() if output.by_default]


def _refuse_parameters(parameters: Mapping[str, Any], known: str, where: str, violations: Violations) -> None:
    if unknown := sorted(name for name in parameters if name != known):
        violations.add(f"{where}.parameters", ", ".join(unknown), f"empty, or {known}")


def add_outputs(
    response: messages.ModelInferResponse, names: Sequence[str], answers: Sequence[Answer], *, raw: bool
) -> None:
    """Adds the tensors of all texts' answers to a response; as raw bytes they take less time and space."""
    for name in names:
        output = OUTPUTS[name]
        cells = [output.of(answer) for answer in answers]
        array = np.full(
            _shape(cells, 1 + len(output.axes)), output.padding, object if output.datatype == "BYTES" else np.float32
        )
        _fill(array, cells)
        tensor = response.outputs.add(name=name, datatype=output.datatype, shape=array.shape)
        if output.datatype == "BYTES":
            elements = [text.encode() for text in array.ravel()]
            if raw:
                response.raw_output_contents.append(pack(elements))
            else:
                tensor.contents.bytes_contents.extend(elements)
        elif raw:
            response.raw_output_contents.append(array.astype("<f4").tobytes())
        else:
            numbers = array.ravel()
            for begin in range(0, len(numbers), PIECE):
                tensor.contents.fp32_contents.extend(numbers[begin : begin + PIECE].tolist())


def _shape(cells: Any, num_axes: int) -> tuple[int, ...]:
    """Returns the shape of the smallest array that holds nested lists of unequal lengths."""
    inner = [_shape(part, num_axes - 1) for part in cells] if num_axes > 1 else []
    return (
        (len(cells), *(max(sizes) for sizes in zip(*inner, strict=True)))
        if inner
        else (len(cells),) + (0,) * (num_axes - 1)
    )


def _fill(array: Any, cells: Any) -> None:
    if array.ndim == 1:
        array[: len(cells)] = cells
        return
    for place, part in enumerate(cells):
        _fill(array[place], part)
