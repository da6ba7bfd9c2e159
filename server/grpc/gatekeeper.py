"""Who calls, and whether they may: asked before anything else of a call is looked at."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health

from attendant.server.auth import CLIENT, Access, Rates, address_of
from attendant.server.catalogue.models import Catalogue
from attendant.server.errors import AttendantError, PermissionDenied, RateLimited, Unauthenticated
from attendant.server.grpc import inference_names as inference
from attendant.server.grpc.inference_names import num_elements
from attendant.server.grpc.many import MAX_REQUESTS
from attendant.server.grpc.reflection import REFLECTION_NAMES
from attendant.server.grpc.request_context import FOR_ADMINISTRATORS, RequestContext, refuse
from attendant.server.grpc.service import METHODS, SERVICE_NAME
from attendant.server.grpc.status import abort
from attendant.server.interceptors import Wrapper, wrapped
from attendant.server.metrics import Metrics
from attendant.server.tracing import tracer

Behaviour = Callable[[Any, Any], Any]
ClientOf = Callable[[Any], str]
Refuse = Callable[[Any, Any, AttendantError], Awaitable[NoReturn]]


class Gatekeeper(grpc.aio.ServerInterceptor):
    """Wraps our methods, and those of health and reflection where these are closed."""

    def __init__(self, access: Access, catalogue: Catalogue, metrics: Metrics) -> None:
        self._access = access
        self._catalogue = catalogue
        self._metrics = metrics
        openness = {health.SERVICE_NAME: access.health, **dict.fromkeys(REFLECTION_NAMES, access.reflection)}
        self._closed = {service for service, value in openness.items() if value == "closed"}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        # Only now: a path that no service has may be anything.
        _, service, method = handler_call_details.method.split("/")
        if service == inference.SERVICE_NAME and method in inference.PROBES:
            service = health.SERVICE_NAME
        if service in (SERVICE_NAME, inference.SERVICE_NAME):
            return wrapped(handler, partial(self.guarded, method))
        if service in self._closed:
            guard = partial(_Guarded, f"{service}/{method}", self._access.client_of, Rates(), self._uncounted(method))
            return wrapped(handler, guard)
        return handler

    @property
    def needs_tokens(self) -> bool:
        """Whether calls need a token."""
        return self._access.tokens is not None

    @property
    def closes_health(self) -> bool:
        """Whether health checks, and the probes of the Open Inference Protocol, need a token."""
        return health.SERVICE_NAME in self._closed

    def guarded(self, method: str, behaviour: Behaviour) -> Wrapper:
        """A method of ours with a guard around it."""
        administers = method in FOR_ADMINISTRATORS
        client_of = self._access.administrator_of if administers else self._access.client_of
        service = SERVICE_NAME if method in METHODS else inference.SERVICE_NAME
        refuse, known_client = self._counted(method), self._access.known_client
        return _Guarded(f"{service}/{method}", client_of, self._access.rates, refuse, behaviour, known_client)

    def charge_listed(self, request: Any) -> None:
        """Charges the client whose call is being handled for a list, which was let in as one request, unread."""
        if (rates := self._access.rates).limited:
            _, num_requests = _size(request)
            rates.charge(CLIENT.get(), 0, num_requests - 1)

    def _counted(self, method: str) -> Refuse:
        """Refuses a request of ours, which is counted and logged like any other."""

        async def end(request: Any, context: Any, error: AttendantError) -> NoReturn:
            counted = RequestContext.of(method, self._catalogue, self._metrics, context, request)
            counted.end(error)
            await abort(context, error, counted.request_id)

        return end

    def _uncounted(self, method: str) -> Refuse:
        """Refuses a call of another service."""

        async def end(_: Any, context: Any, error: AttendantError) -> NoReturn:
            await refuse(context, method, error, self._metrics)

        return end


class _Guarded:
    """Around a method: asks for credentials, and keeps each client to its rate."""

    def __init__(
        self,
        name: str,
        client_of: ClientOf,
        rates: Rates,
        refuse: Refuse,
        behaviour: Behaviour,
        known_client: ClientOf = lambda context: address_of(context.peer()),
    ) -> None:
        """`name`: the method's, with its service; `known_client`: names callers that may not call it, for the log."""
        self._name = name
        self._client_of = client_of
        self._known_client = known_client
        self._rates = rates
        self._refuse = refuse
        self._behaviour = behaviour

    async def answer(self, request: Any, context: Any) -> Any:
        """A request too many is refused."""
        await self._let_in(request, context)
        return await self._behaviour(request, context)

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """A request too many is refused; those of a stream are read later instead."""
        is_stream = hasattr(request, "__aiter__")
        await self._let_in(request, context, paced=is_stream)
        revoked: list[AttendantError] = []
        if is_stream:
            request = self._paced(request, context, revoked)
        answer = self._behaviour(request, context)
        if hasattr(answer, "__aiter__"):
            async for response in answer:
                yield response
        else:  # it writes to the context itself, as the health servicer's Watch does
            await answer
        for error in revoked:
            await self._refuse(request, context, error)

    async def _let_in(self, request: Any, context: Any, *, paced: bool = False) -> None:
        """`paced`: it is a stream, whose requests are let in one by one."""
        if (traced := tracer()) is not None:
            traced.note_call(self._name, context)
        try:
            client = self._client_of(context)
            CLIENT.set(client)
            if not paced and (wait_seconds := self._wait_seconds(client, request)) > 0:
                raise RateLimited(wait_seconds)
        except RateLimited as error:
            await self._refuse(request, context, error)
        except (PermissionDenied, Unauthenticated) as error:
            CLIENT.set(self._known_client(context))
            await self._refuse(request, context, error)

    async def _paced(
        self, requests: AsyncIterator[Any], context: Any, revoked: list[AttendantError]
    ) -> AsyncIterator[Any]:
        """The requests of a stream, until its token is not known any more: that is told in `revoked`."""
        async for request in requests:
            try:
                client = self._client_of(context)
            except Unauthenticated as error:
                revoked.append(error)
                return
            while (wait_seconds := self._wait_seconds(client, request)) > 0:
                await asyncio.sleep(wait_seconds)
            yield request

    def _wait_seconds(self, client: str, request: Any) -> float:
        """Lets a request in, or says when it would be."""
        return self._rates.take(client, *_size(request)) if self._rates.limited else 0.0


def _size(request: Any) -> tuple[int, int]:
    """Its bytes, and how many requests it is: a list, or a tensor, counts for as many as it holds."""
    listed = len(getattr(request, "requests", ()))
    # What a tensor really has is seen when it is read; if its shape is not that, or there are several, it is refused.
    shaped = [num_elements(tensor.shape) for tensor in getattr(request, "inputs", ())[:1]]
    return request.ByteSize(), max(1, listed, *(min(size, MAX_REQUESTS) for size in shaped))
