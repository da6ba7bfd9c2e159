"""The Open Inference Protocol over HTTP (KServe's REST, version 2), on the methods that gRPC serves.

A request in JSON becomes the message that gRPC would bring. Its texts, and the answer's tensors, have their raw form in
between: that is also how they travel in the protocol's binary extension, which NVIDIA's client uses.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from attendant.runtime.errors import Violation, shortened
from attendant.server.call import Rpc
from attendant.server.errors import AttendantError, InvalidArgument
from attendant.server.grpc.requests import WRITERS, off_the_loop
from attendant.server.http import bodies
from attendant.server.http.app import ApiRoute, HttpApi, check_query
from attendant.server.http.endpoints import STATUSES, Endpoint, problem_headers
from attendant.server.inference.service import pack, unpack
from attendant.server.inference.v2 import open_inference_pb2 as wire

PREFIX: Final = "/v2"
MODEL: Final = "/models/{name}"

HEADER_LENGTH: Final = "inference-header-content-length"
"""The header with the length of a body's JSON, after which its tensors in bytes begin."""
BYTES: Final = "application/octet-stream"

MAX_ITEMS: Final = 16  # Limit of a request's inputs, and of its outputs: a model has fewer.
INT64: Final = range(-(2**63), 2**63)
SCALARS: Final = "a string, a number, true or false"


INFERENCE_ROUTES: Final = (
    ApiRoute("GET", "", "ServerMetadata"),
    ApiRoute("GET", "/health/live", "ServerLive"),
    ApiRoute("GET", "/health/ready", "ServerReady"),
    *(
        ApiRoute(verb, f"{MODEL}{version}{rest}", method)
        for version in ("", "/versions/{version}")
        for verb, rest, method in (
            ("GET", "", "ModelMetadata"),
            ("GET", "/ready", "ModelReady"),
            ("POST", "/infer", "ModelInfer"),
        )
    ),
    ApiRoute("POST", "/repository/index", "RepositoryIndex"),
    ApiRoute("POST", f"/repository{MODEL}/load", "RepositoryModelLoad"),
    ApiRoute("POST", f"/repository{MODEL}/unload", "RepositoryModelUnload"),
)
"""The protocol's paths, below PREFIX; their parameters are `name` and `version` of a model."""


@dataclass(slots=True)
class InferenceBody(bodies.Body):
    """A request whose JSON is not parsed yet.

    Attributes:
        header_length: bytes of JSON; tensors follow. If None, all bytes are JSON.
        binary: output -> whether it is wanted in bytes; under None for all that are not named.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    header_length: int | None = None
    binary: dict[str | None, bool] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        return self.parameters.get("name", "")

    def read(self, rpc: Rpc) -> Message:
        """Returns the message of the body and the path. Raises InvalidArgument, Undecodable."""
        head = self.raw[: self.header_length]
        # Load, unload and the index need no body.
        named = bodies.parse_json(head) if head or rpc.name == "ModelInfer" else {}
        return _Reading(named, self.raw[len(head) :], self).request(rpc.name)


def add_inference(api: HttpApi, rpcs: Mapping[str, Rpc]) -> None:
    for route in INFERENCE_ROUTES:
        rpc = rpcs[route.method]
        api.add(
            route.verb, PREFIX + route.path, api.endpoint(InferenceEndpoint, rpc, partial(read_request, route, rpc))
        )
    api.set_problem(PREFIX, _problem)


async def read_request(route: ApiRoute, rpc: Rpc, request: Request) -> Message | InferenceBody:
    """Returns the request of a path and its body.

    Raises:
        HttpError: as `body_bytes`, or a page of another origin could send the body unasked.
        InvalidArgument: the query is not empty, or the header of the JSON's length is not one.
        ClientDisconnect: starlette's.
    """
    check_query(request)
    if route.verb == "GET":
        return rpc.request_class(**request.path_params)
    # NVIDIA's client names no type. A browser may send that unasked too, but never without the header Origin.
    if bodies.type_of(request) != bodies.JSON and (
        bodies.type_of(request) not in ("", BYTES) or "origin" in request.headers
    ):
        raise bodies.HttpError(415, "INVALID_ARGUMENT", f"the header Content-Type must be {bodies.JSON} or {BYTES}")
    raw = await bodies.body_bytes(request)
    length = request.headers.get(HEADER_LENGTH)
    if length is not None and not (re.fullmatch("[0-9]{1,7}", length) and int(length) <= len(raw)):
        limit = f"the bytes of JSON in the body, at most {len(raw)}"
        raise InvalidArgument(Violation(HEADER_LENGTH, shortened(length), limit, quoted=True))
    header_length = None if length is None else int(length)
    return InferenceBody(raw, parameters=request.path_params, header_length=header_length)


class _Reading:
    """Reads one body, and collects all that is wrong with it."""

    def __init__(self, named: Any, tail: bytes, body: InferenceBody) -> None:
        self._faults: list[Violation] = []
        self._fields = named if self._is(dict, named, bodies.BODY, "an object") else {}
        self._tail = tail
        self._body = body

    def request(self, method: str) -> Message:
        """Returns the message of a method. Raises InvalidArgument: with all that is wrong."""
        path = self._body.parameters
        request: Message
        if method == "ModelInfer":
            infer = wire.ModelInferRequest(model_name=path["name"], model_version=path.get("version", ""))
            request, self._body.own_id = self._infer(infer), infer.id
        elif method == "RepositoryIndex":
            self._know(self._fields, ("ready", "repository_name"), bodies.BODY)
            ready, name = self._fields.get("ready", False), self._fields.get("repository_name", "")
            request = wire.RepositoryIndexRequest()
            if self._is(bool, ready, "ready", "true or false") and self._is_text(name, "repository_name"):
                request = wire.RepositoryIndexRequest(ready=ready, repository_name=name)
        else:
            self._know(self._fields, ("parameters",), bodies.BODY)
            loads = method == "RepositoryModelLoad"
            kind = wire.RepositoryModelLoadRequest if loads else wire.RepositoryModelUnloadRequest
            request = kind(model_name=path["name"])
            for name, _ in self._parameters(self._fields, bodies.BODY):
                request.parameters[name].SetInParent()
        if self._tail and not self._faults:
            self._faults.append(Violation(bodies.BODY, f"{len(self._tail)} bytes too long", "as long as its tensors"))
        if self._faults:
            raise InvalidArgument(*self._faults)
        return request

    def _infer(self, request: wire.ModelInferRequest) -> wire.ModelInferRequest:
        self._know(self._fields, ("id", "parameters", "inputs", "outputs", "model_name", "model_version"), bodies.BODY)
        # KServe's client repeats the path's values in the body.
        for name, in_path in (("model_name", request.model_name), ("model_version", request.model_version)):
            if (value := self._fields.get(name)) is not None and value != in_path:
                self._faults.append(bodies.fault(name, value, f"{in_path!r}, as in the path, or absent"))
        if self._is_text(request_id := self._fields.get("id", ""), "id"):
            request.id = request_id
        for name, value in self._parameters(self._fields, bodies.BODY):
            if name == "binary_data_output":
                self._note_binary(None, value, f"parameters.{name}")
            else:
                self._parameter(request.parameters, name, value, f"parameters.{name}")
        for where, tensor in self._items("inputs"):
            self._input(request, tensor, where)
        for where, tensor in self._items("outputs"):
            self._know(tensor, ("name", "parameters"), where)
            output = request.outputs.add()
            named: Any = tensor.get("name")
            if self._is_text(named, f"{where}.name"):
                output.name = named
            for key, value in self._parameters(tensor, where):
                if key == "binary_data":
                    self._note_binary(output.name, value, f"{where}.parameters.{key}")
                else:
                    self._parameter(output.parameters, key, value, f"{where}.parameters.{key}")
        return request

    def _input(self, request: wire.ModelInferRequest, tensor: dict[str, Any], where: str) -> None:
        self._know(tensor, ("name", "shape", "datatype", "parameters", "data"), where)
        added = request.inputs.add()
        for name in ("name", "datatype"):
            if self._is_text(named := tensor.get(name), f"{where}.{name}"):
                setattr(added, name, named)
        shape: Any = tensor.get("shape")
        if self._is(list, shape, f"{where}.shape", "a list of whole numbers"):
            for axis, size in enumerate(shape):
                if (number := bodies.whole_number(size)) is None or number not in INT64:
                    self._faults.append(bodies.fault(f"{where}.shape[{axis}]", size, "a whole number of 64 bits"))
                    break
                added.shape.append(number)
        num_bytes = None
        for name, value in self._parameters(tensor, where):
            if name != "binary_data_size":
                self._parameter(added.parameters, name, value, f"{where}.parameters.{name}")
            elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= len(self._tail):
                num_bytes = value
            else:
                limit = f"a number of bytes after the JSON, at most {len(self._tail)}"
                self._faults.append(bodies.fault(f"{where}.parameters.{name}", value, limit))
        if num_bytes is None:
            request.raw_input_contents.append(pack(self._texts(tensor.get("data", []), f"{where}.data")))
        elif "data" in tensor:
            self._faults.append(Violation(where, "data and binary_data_size", "one of them"))
        else:
            request.raw_input_contents.append(self._tail[:num_bytes])
            self._tail = self._tail[num_bytes:]

    def _texts(self, data: Any, where: str) -> list[bytes]:
        """Returns the strings of a list that may contain lists, row by row, in UTF-8."""
        if not self._is(list, data, where, "a list of strings"):
            return []
        texts: list[bytes] = []
        rest = [iter(data)]
        while rest:
            for item in rest[-1]:
                if isinstance(item, list):
                    rest.append(iter(item))
                    break
                if not self._is_text(item, f"{where}[{len(texts)}]"):
                    return []
                texts.append(item.encode())
            else:
                rest.pop()
        return texts

    def _note_binary(self, name: str | None, value: Any, where: str) -> None:
        if self._is(bool, value, where, "true or false"):
            self._body.binary[name] = value

    def _parameter(self, parameters: Any, name: str, value: Any, where: str) -> None:
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int) and value in INT64:
            parameters[name].int64_param = value
        elif isinstance(value, int) and 0 <= value < 2**64:
            parameters[name].uint64_param = value
        elif isinstance(value, int | float):
            parameters[name].double_param = float(max(-1e300, min(value, 1e300)))
        elif self._is(str, value, where, SCALARS) and self._is_text(value, where):
            parameters[name].string_param = value

    def _items(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        items = self._fields.get(name, [])
        if not self._is(list, items, name, "a list of objects"):
            return
        if len(items) > MAX_ITEMS:
            self._faults.append(Violation(name, f"{len(items)} items long", f"at most {MAX_ITEMS} items long"))
            return
        for place, item in enumerate(items):
            if self._is(dict, item, f"{name}[{place}]", "an object"):
                yield f"{name}[{place}]", item

    def _parameters(self, named: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        """Yields the names and values of an object's member `parameters`. If it is missing, there are none."""
        where = "parameters" if path == bodies.BODY else f"{path}.parameters"
        parameters = named.get("parameters", {})
        if self._is(dict, parameters, where, "an object"):
            for name, value in parameters.items():
                if self._is_text(name, where):
                    yield name, value

    def _know(self, named: dict[str, Any], names: Sequence[str], path: str) -> None:
        self._faults += bodies.unknown_members(named, dict.fromkeys(names), path)

    def _is(self, kind: type, value: Any, where: str, limit: str) -> bool:
        if not isinstance(value, kind):
            self._faults.append(bodies.fault(where, value, limit))
        return isinstance(value, kind)

    def _is_text(self, value: Any, where: str) -> bool:
        if not bodies.is_text(value):
            self._faults.append(bodies.fault(where, value, bodies.string(value)))
        return bodies.is_text(value)


def _problem(error: AttendantError, request_id: str) -> Response:
    """Returns `{"error": ...}` with the status and the headers that the problem would have elsewhere."""
    status = error.http_status if isinstance(error, bodies.HttpError) else STATUSES[error.code]
    return Response(_json({"error": str(error)}), status, problem_headers(error), bodies.JSON)


class InferenceEndpoint(Endpoint):
    """Calls a method of the protocol, whose answers and errors have the protocol's own forms."""

    problem = staticmethod(_problem)

    async def respond(self, request: Any, message: Message) -> Response:
        if isinstance(message, wire.ModelInferResponse):
            write = partial(_written, message, request.binary)
            return await off_the_loop(message.ByteSize(), write, bodies.LOOP_ANSWER_BYTES, WRITERS)
        fields = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        status = 200
        if isinstance(message, wire.RepositoryIndexResponse):
            return Response(_json(fields["models"]), media_type=bodies.JSON)
        if isinstance(message, wire.ServerReadyResponse):
            status = 200 if message.ready else 503
        elif isinstance(message, wire.ModelReadyResponse):
            status = 200 if message.ready else 404
            fields = {"name": request.name} | fields
        for tensor in (*fields.get("inputs", ()), *fields.get("outputs", ())):
            tensor["shape"] = list(map(int, tensor["shape"]))
        return Response(_json(fields), status, media_type=bodies.JSON)


def _written(message: wire.ModelInferResponse, binary: Mapping[str | None, bool]) -> Response:
    """Returns the answer to ModelInfer, with outputs in JSON or, after it, in bytes."""
    tail = b""
    outputs = []
    for tensor, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if binary.get(tensor.name, binary.get(None, False)):
            output["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            output["data"] = _data(tensor.datatype, raw)
        outputs.append(output)
    fields = {"model_name": message.model_name, "model_version": message.model_version}
    head = _json(fields | ({"id": message.id} if message.id else {}) | {"outputs": outputs})
    if not any("parameters" in output for output in outputs):
        return Response(head, media_type=bodies.JSON)
    return Response(head + tail, headers={HEADER_LENGTH: str(len(head))}, media_type=BYTES)


def _data(datatype: str, raw: bytes) -> list[Any]:
    """Returns the elements of a tensor, with None for infinities and NaN, which JSON does not have."""
    if datatype == "BYTES":
        return [text.decode() for text in unpack(raw) or ()]
    numbers = np.frombuffer(raw, "<f4")
    # The shortest decimal that single precision holds as this.
    return [float(text) if held else None for text, held in zip(numbers.astype(str), np.isfinite(numbers), strict=True)]


def _json(fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
