"""The service inference.GRPCInferenceService. What its methods mean here is written in the proto."""

from collections.abc import Callable, Iterable
from typing import Any

import grpc

from attendant.runtime.requests import Violation, shortened
from attendant.server.catalogue.models import Catalogue
from attendant.server.catalogue.reconciler import Entry, Reconciler
from attendant.server.errors import AttendantError, InvalidArgument
from attendant.server.grpc.request_context import Answering
from attendant.server.inference.infer import infer
from attendant.server.inference.tensors import INPUT, OUTPUTS
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant.server.inference.v2 import open_inference_pb2_grpc
from attendant.server.metrics import Metrics
from attendant_client.version import VERSION

Context = grpc.aio.ServicerContext[Any, Any]
EXTENSIONS = ("binary_tensor_data", "model_repository")
TENSOR = wire.ModelMetadataResponse.TensorMetadata


class InferenceServicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The same models, engines, limits and errors as attendant.v1.Seq2Seq's.

    Instead of a request, a method may be given an UndecodableRequest.
    """

    def __init__(
        self, catalogue: Catalogue, metrics: Metrics, reconciler: Reconciler, is_serving: Callable[[], bool]
    ) -> None:
        self._catalogue = catalogue
        self._reconciler = reconciler
        self._is_serving = is_serving
        self._metrics = metrics

    async def ServerLive(self, request: Any, context: Context) -> Any:  # noqa: N802
        return wire.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:  # noqa: N802
        return wire.ServerReadyResponse(ready=self._is_serving())

    async def ModelReady(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("ModelReady", request, context):
            try:
                self._catalogue.routes(request.name).find(request.version)
            except AttendantError:
                return wire.ModelReadyResponse(ready=False)
            return wire.ModelReadyResponse(ready=self._is_serving())

    async def ServerMetadata(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("ServerMetadata", request, context):
            return wire.ServerMetadataResponse(name="attendant", version=VERSION, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("ModelMetadata", request, context):
            routes = self._catalogue.routes(request.name)
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

    async def ModelInfer(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("ModelInfer", request, context):
            model = self._catalogue.find(request.model_name, request.model_version)
            return await infer(request, model, context.time_remaining)

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("RepositoryIndex", request, context):
            self._check_repository(request.repository_name)
            found = self._reconciler.index()
            stable = {routes.stable.name: routes.stable.label for routes in self._catalogue.all()}
            alone = [Entry(name, stable[name]) for name in stable.keys() - {entry.name for entry in found}]
            if request.repository_name:
                alone, found = [], [entry for entry in found if entry.repository == request.repository_name]
            return wire.RepositoryIndexResponse(
                models=[
                    wire.RepositoryIndexResponse.ModelIndex(
                        name=entry.name,
                        version=entry.label,
                        state="UNAVAILABLE" if entry.reason else "READY",
                        reason=entry.reason,
                    )
                    for entry in sorted([*alone, *found])
                    if not (request.ready and entry.reason)
                ]
            )

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("RepositoryModelLoad", request, context):
            self._check_repository(request.repository_name)
            _refuse_parameters(request.parameters.keys())
            await self._reconciler.load(request.model_name)
            return wire.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:  # noqa: N802
        async with self._answering("RepositoryModelUnload", request, context):
            self._check_repository(request.repository_name)
            _refuse_parameters(request.parameters.keys() - {"unload_dependents"})
            await self._reconciler.unload(request.model_name)
            return wire.RepositoryModelUnloadResponse()

    def _check_repository(self, name: str) -> None:
        """Raises InvalidArgument if no repository has this name; the empty one stands for all of them."""
        names = sorted(path.absolute().name for path in self._reconciler.repositories)
        if name and name not in names:
            limit = f"empty, or one of {', '.join(names)}" if names else "empty: there is no repository"
            raise InvalidArgument(Violation("repository_name", shortened(name), limit, quoted=True))

    def _answering(self, method: str, request: Any, context: Context) -> Answering:
        return Answering(method, self._catalogue, self._metrics, context, request)


def _refuse_parameters(names: Iterable[str]) -> None:
    for name in names:
        raise InvalidArgument(
            Violation("parameters", shortened(name), "none: there are none of this method", quoted=True)
        )
