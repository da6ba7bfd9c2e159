"""The service inference.GRPCInferenceService, the Open Inference Protocol. Its proto describes its methods.

Each text of ModelInfer's tensor becomes a request like Generate's, and is read, submitted and counted by the same
functions. Parameters are decoding options by their names in attendant.v1.

Shapes of tensors: N texts, H hypotheses of the text that has most, T summands of the longest (its tokens, and EOS if it
ended there), S source tokens of the longest, W warnings of the text that has most. The rest is padding: empty strings
and zeros, and a score and log_prob of minus infinity for a missing hypothesis. A confidence is NaN if there is none.
"""

# ruff: noqa: N802  # methods have the proto's names

import asyncio
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from attendant.runtime.answers import answer_fields
from attendant.runtime.decoding.options import RANGES
from attendant.runtime.errors import Violation, Violations, shortened, some_of
from attendant.server.call import Call, RequestLog, RequestRecord, Rpc, guard_of, rpcs_of
from attendant.server.catalogue import ServedModel
from attendant.server.config import Openness
from attendant.server.engine.messages import Priority, Result
from attendant.server.errors import AttendantError, InvalidArgument
from attendant.server.grpc import requests
from attendant.server.grpc.lists import ANSWERS_IN_A_ROW, MAX_REQUESTS
from attendant.server.http.bodies import to_json
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant.server.repository import Entry, Reconciler
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.version import VERSION

SERVICE: Final = wire.DESCRIPTOR.services_by_name["GRPCInferenceService"]
POSITION: Final = re.compile("[0-9]{1,10}")
MAX_POSITION: Final = requests.WHOLE[FieldDescriptor.CPPTYPE_UINT32]
PROBES: Final = ("ServerLive", "ServerReady")  # Methods that need no token unless health checks need one.
EXTENSIONS = ("binary_tensor_data", "model_repository")
TENSOR = wire.ModelMetadataResponse.TensorMetadata
PREFIX, MASKED, SAMPLING, TRACE = "target_prefix", "masked_source_positions", "sampling", "trace"
TRACED_CANDIDATES: Final = 5
"""Candidates of a live hypothesis in the output `trace`, unless the parameter of that name has another number."""
OUTPUT_FIELDS: Final = {
    name: messages.OutputOptions.DESCRIPTOR.fields_by_name[name] for name in ("replace_unknowns", TRACE)
}
SAMPLING_FIELDS: Final = messages.SamplingOptions.DESCRIPTOR.fields_by_name
FIELDS: Final[Mapping[str, Any]] = {
    **{
        name: field
        for name, field in messages.DecodingOptions.DESCRIPTOR.fields_by_name.items()
        if field.message_type is None and not field.is_repeated
    },
    **SAMPLING_FIELDS,
    **OUTPUT_FIELDS,
}
PARAMETERS: Final = (*FIELDS, PREFIX, MASKED, SAMPLING)
MAX_UNKNOWN: Final = 4  # Unknown parameters that an error shows.


class InferenceServicer:
    """Answers with the models, engines, limits and errors of attendant.v1.Seq2Seq."""

    def __init__(self, log: RequestLog, reconciler: Reconciler, is_serving: Callable[[], bool]) -> None:
        self._reconciler = reconciler
        self._is_serving = is_serving
        self._log = log

    def rpcs(self, health: Openness) -> dict[str, Rpc]:
        """Makes the table of the service. Probes are as open as health checks."""
        table = rpcs_of(SERVICE, self)
        for name in PROBES:
            table[name] = replace(table[name], guard=guard_of(health), is_counted=False)
        table["ModelInfer"] = replace(table["ModelInfer"], size=_num_texts)
        return table

    async def ServerLive(self, request: Any, call: Call) -> Any:
        return wire.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, call: Call) -> Any:
        return wire.ServerReadyResponse(ready=self._is_serving())

    async def ModelReady(self, request: Any, call: Call) -> Any:
        with self._log.begin("ModelReady", call, request):
            try:
                model = self._log.catalogue.routes(request.name).find(request.version)
            except AttendantError:
                return wire.ModelReadyResponse(ready=False)
            return wire.ModelReadyResponse(ready=model.runner.is_available)

    async def ServerMetadata(self, request: Any, call: Call) -> Any:
        with self._log.begin("ServerMetadata", call, request):
            return wire.ServerMetadataResponse(name="attendant", version=VERSION, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, call: Call) -> Any:
        with self._log.begin("ModelMetadata", call, request):
            routes = self._log.catalogue.routes(request.name)
            labels = [model.label for model in routes.all()]
            if request.version:
                labels = [routes.find(request.version).label]
            return wire.ModelMetadataResponse(
                name=routes.stable.name,
                versions=labels,
                platform="attendant",
                inputs=[TENSOR(name=INPUT, datatype="BYTES", shape=[-1])],
                outputs=[
                    TENSOR(name=name, datatype=output.datatype, shape=[-1] * (1 + len(output.axes)))
                    for name, output in OUTPUTS.items()
                ],
            )

    async def ModelInfer(self, request: Any, call: Call) -> Any:
        with self._log.begin("ModelInfer", call, request) as record:
            model = record.lease(request.model_name, request.model_version)
            return await infer(request, model, call, record)

    async def RepositoryIndex(self, request: Any, call: Call) -> Any:
        with self._log.begin("RepositoryIndex", call, request):
            self._check_repository(request.repository_name)
            entries = self._reconciler.index()
            stable = {routes.stable.name: routes.stable.label for routes in self._log.catalogue.all()}
            alone = [Entry(name, stable[name]) for name in stable.keys() - {entry.name for entry in entries}]
            if request.repository_name:
                alone, entries = [], [entry for entry in entries if entry.repository == request.repository_name]
            return wire.RepositoryIndexResponse(
                models=[
                    wire.RepositoryIndexResponse.ModelIndex(
                        name=entry.name,
                        version=entry.label,
                        state="UNAVAILABLE" if entry.reason else "READY",
                        reason=entry.reason,
                    )
                    for entry in sorted([*alone, *entries])
                    if not (request.ready and entry.reason)
                ]
            )

    async def RepositoryModelLoad(self, request: Any, call: Call) -> Any:
        with self._log.begin("RepositoryModelLoad", call, request):
            self._check_repository(request.repository_name)
            _refuse_parameters(request.parameters.keys())
            await self._reconciler.load(request.model_name)
            return wire.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, call: Call) -> Any:
        with self._log.begin("RepositoryModelUnload", call, request):
            self._check_repository(request.repository_name)
            _refuse_parameters(request.parameters.keys() - {"unload_dependents"})
            await self._reconciler.unload(request.model_name)
            return wire.RepositoryModelUnloadResponse()

    def _check_repository(self, name: str) -> None:
        """Raises InvalidArgument if no repository has this name; the empty one means all of them."""
        names = sorted(path.absolute().name for path in self._reconciler.repositories)
        if name and name not in names:
            limit = f"empty, or one of {', '.join(names)}" if names else "empty: there is no repository"
            raise InvalidArgument(Violation("repository_name", shortened(name), limit, quoted=True))


def _refuse_parameters(names: Iterable[str]) -> None:
    for name in names:
        raise InvalidArgument(Violation("parameters", shortened(name), "none: this method has none", quoted=True))


async def infer(
    request: wire.ModelInferRequest, model: ServedModel, call: Call, record: RequestRecord
) -> wire.ModelInferResponse:
    """Answers a tensor of texts: each is a request like Generate's. Raises the error of the first text that has one."""
    names, texts = await requests.off_the_loop(request.ByteSize(), partial(_read, request, model))
    outcomes = await asyncio.gather(*requests.submit_all(texts, call, Priority.INTERACTIVE))
    results = []
    for text, outcome in zip(texts, outcomes, strict=True):
        results.append(text.generated(outcome, record))
        if len(results) % ANSWERS_IN_A_ROW == 0:
            await asyncio.sleep(0)
    return await requests.written(
        sum(map(requests.num_cells, results)), partial(_response, request, model, names, texts, results)
    )


def _response(
    request: wire.ModelInferRequest,
    model: ServedModel,
    names: list[str],
    texts: list[requests.ParsedRequest],
    results: list[Result],
) -> wire.ModelInferResponse:
    response = wire.ModelInferResponse(model_name=model.name, model_version=model.label, id=request.id)
    answers = [
        answer_fields(result.hypotheses, result.trace, text.content, model)
        for text, result in zip(texts, results, strict=True)
    ]
    for answer in answers:
        fields = answer["trace"]
        answer["trace"] = "" if fields is None else to_json(messages.Trace(**fields))
    add_outputs(response, names, answers, raw=bool(request.raw_input_contents))
    return response


def _read(request: wire.ModelInferRequest, model: ServedModel) -> tuple[list[str], list[requests.ParsedRequest]]:
    """Returns the names of the requested outputs, and a request for each text."""
    violations, common = Violations(), messages.GenerateRequest(request_id=request.id)
    texts, names = read_texts(request, violations), read_outputs(request, violations)
    set_options(common, request.parameters, violations)
    if violations:
        raise InvalidArgument(*violations)
    common.output.attention = "attention" in names
    common.output.token_log_probs = "token_log_probs" in names
    if TRACE in names:
        common.output.trace = common.output.trace or TRACED_CANDIDATES
    elif common.output.trace in RANGES[TRACE]:  # another number is refused with the other options
        common.output.trace = 0
    parsed = []
    for place, text in enumerate(texts):
        generate = messages.GenerateRequest(text=text)
        generate.MergeFrom(common)
        try:
            parsed.append(requests.read_generate(generate, model))
        except InvalidArgument as error:
            raise InvalidArgument(*(_renamed(violation, place) for violation in error.violations)) from None
    # The tensors are as large as if every text's answer were the largest one.
    num_bytes = len(parsed) * max(text.max_answer_bytes for text in parsed)
    requests.check_answer_bytes(num_bytes, len(parsed), f"inputs[{INPUT}]")
    return names, parsed


def _renamed(violation: Violation, place: int) -> Violation:
    """Returns a violation of a text's request with the name that its field has in this protocol."""
    if violation.field in ("text", "source"):
        return replace(violation, field=f"inputs[{INPUT}][{place}]")
    if violation.field == "request_id":
        return replace(violation, field="id")
    section, _, name = violation.field.partition(".")
    name = name.removeprefix("sampling.").replace(".tokens", "")
    return replace(violation, field=f"{'outputs' if name == 'attention' else 'parameters'}.{name}" if section else name)


def _num_texts(request: Any) -> int:
    """Returns the number of texts that a request's shape names. A shape that is wrong is refused when it is read."""
    sizes = [num_elements(tensor.shape) for tensor in getattr(request, "inputs", ())[:1]]
    return min(max([1, *sizes]), MAX_REQUESTS)


def set_options(
    request: messages.GenerateRequest, parameters: Mapping[str, wire.InferParameter], violations: Violations
) -> None:
    """Sets the options of a request; unknown names together, and each value of another type, are violations."""
    if unknown := sorted(name for name in parameters if name not in PARAMETERS):
        # Messages are cut: the names that start as the first unknown one come first.
        choices = sorted(PARAMETERS, key=lambda name: (name[:3] != unknown[0][:3], name))
        names = some_of([shortened(name) for name in unknown], MAX_UNKNOWN)
        violations.append(Violation("parameters", names, f"some of {', '.join(choices)}", quoted=True))
    for name, parameter in parameters.items():
        value = getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")
        if name == PREFIX:
            if violations.require(isinstance(value, str), f"parameters.{name}", value, "tokens, separated by spaces"):
                request.decoding.target_prefix.tokens.extend(value.split())
        elif name == MASKED:
            places = value.split() if isinstance(value, str) else [""]
            held = all(POSITION.fullmatch(place) and int(place) <= MAX_POSITION for place in places)
            if violations.require(held, f"parameters.{name}", value, "positions, separated by spaces"):
                request.decoding.masked_source_positions.extend(map(int, places))
        elif name == SAMPLING:
            if violations.require(value is True, f"parameters.{name}", value, "true or unset"):
                request.decoding.sampling.SetInParent()
        elif (field := FIELDS.get(name)) is not None:
            if isinstance(value, float) and field.cpp_type in requests.WHOLE:
                value = _whole(value)
            if violations.require(_fits(field, value), f"parameters.{name}", value, requests.must_be(field)):
                setattr(_part(request, name), name, value)


def _part(request: messages.GenerateRequest, name: str) -> Any:
    if name in OUTPUT_FIELDS:
        return request.output
    return request.decoding.sampling if name in SAMPLING_FIELDS else request.decoding


def _whole(value: float) -> int | float:
    """Returns a double as a whole number if it is one: many clients write 2.0 for 2."""
    return int(value) if value.is_integer() and abs(value) <= 2**64 else value


def _fits(field: Any, value: Any) -> bool:
    if field.cpp_type in requests.WHOLE:
        return type(value) is int and 0 <= value <= requests.WHOLE[field.cpp_type]
    kinds = {FieldDescriptor.CPPTYPE_BOOL: (bool,), FieldDescriptor.CPPTYPE_STRING: (str,)}
    return type(value) in kinds.get(field.cpp_type, (int, float))


MAX_DIMENSIONS: Final = 8  # Limit of an input's shape. The product of more sizes may have any number of digits.
LENGTH: Final = struct.Struct("<I")

PIECE: Final = 16_384  # Limit of the numbers that are copied into a message before other threads may run.

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
CONTENTS: Final = "bytes_contents"
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


def read_texts(request: wire.ModelInferRequest, violations: Violations) -> list[str]:
    """Returns the texts of the request's only input, or none if there are violations."""
    names = [tensor.name for tensor in request.inputs[:MAX_DIMENSIONS]]
    if not violations.require(names == [INPUT], "inputs", ", ".join(names), f"one tensor, named {INPUT}"):
        return []
    (tensor,) = request.inputs
    _require_known(tensor.parameters, INPUT_PARAMETER, f"inputs[{INPUT}]", violations)
    violations.require(tensor.datatype == "BYTES", f"inputs[{INPUT}].datatype", tensor.datatype, "BYTES")
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != CONTENTS]
    if not violations.require(not others, f"inputs[{INPUT}].contents", ", ".join(others), f"only {CONTENTS}"):
        return []
    elements: Sequence[bytes] | None = tensor.contents.bytes_contents
    if raw := request.raw_input_contents:
        held = len(raw) == 1 and not elements
        violations.require(held, "raw_input_contents", len(raw), "the contents of each input, set nowhere else")
        elements = unpack(raw[0])
    if elements is None:
        violations.add_state(
            "raw_input_contents[0]", "cut short", "texts, each after its length in four bytes, the lowest one first"
        )
        return []
    if not 1 <= len(elements) <= MAX_REQUESTS:
        violations.add_state(f"inputs[{INPUT}]", f"of {len(elements)} elements", f"of 1 to {MAX_REQUESTS} elements")
    elif num_elements(tensor.shape) != len(elements):
        size = len(tensor.shape)
        shown = str(list(tensor.shape)) if size <= MAX_DIMENSIONS else f"{size} sizes long"
        limit = f"1 to {MAX_DIMENSIONS} sizes whose product is the number of elements, {len(elements)}"
        violations.add_state(f"inputs[{INPUT}].shape", shown, limit)
    texts = []
    for place, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            violations.add_state(f"inputs[{INPUT}][{place}]", "no UTF-8", "a text in UTF-8")
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


def read_outputs(request: wire.ModelInferRequest, violations: Violations) -> list[str]:
    names = [output.name for output in request.outputs[: len(OUTPUTS) + 1]]
    violations.require(len(names) <= len(OUTPUTS), "outputs", len(request.outputs), f"at most {len(OUTPUTS)}")
    for place, name in enumerate(names):
        where = f"outputs[{place}].name"
        violations.require(name in OUTPUTS, where, name, f"one of {', '.join(OUTPUTS)}")
        violations.require(name not in names[:place], where, name, "another one than the outputs before")
        _require_known(request.outputs[place].parameters, OUTPUT_PARAMETER, f"outputs[{place}]", violations)
    return names or [name for name, output in OUTPUTS.items() if output.by_default]


def _require_known(parameters: Mapping[str, Any], known: str, where: str, violations: Violations) -> None:
    if unknown := sorted(name for name in parameters if name != known):
        violations.add(f"{where}.parameters", ", ".join(unknown), f"empty, or {known}")


def add_outputs(
    response: wire.ModelInferResponse, names: Sequence[str], answers: Sequence[Answer], *, raw: bool
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
    if num_axes == 1:
        return (len(cells),)
    inner = [_shape(part, num_axes - 1) for part in cells]
    largest = map(max, zip(*inner, strict=True)) if inner else (0,) * (num_axes - 1)
    return (len(cells), *largest)


def _fill(array: Any, cells: Any) -> None:
    if array.ndim == 1:
        array[: len(cells)] = cells
        return
    for place, part in enumerate(cells):
        _fill(array[place], part)
