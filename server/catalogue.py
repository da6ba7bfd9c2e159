"""The served models: each version with its engine, and the version that a request gets."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from attendant.runtime.bundle.bundle import BundleModel
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.errors import Violation
from attendant.server.engine.client import EngineClient
from attendant.server.errors import InvalidArgument, NotReady, UnknownModel, UnknownVersion
from attendant.server.metrics import ModelMetrics

Role = Literal["stable", "canary", "shadow", "named"]
"""The requests that a version answers. Stable: those that name no version; canary: a share of these; named: those that
name it; shadow: none, its answers are only compared with the stable version's."""


class Leases:
    """Counts the requests that use a version, so that its engine ends only after the last of them.

    Any thread may acquire and release.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_held = 0
        self._on_last: Callable[[], object] | None = None
        self._ended = False

    def acquire(self) -> bool:
        """Takes a lease; returns False if the version has ended."""
        with self._lock:
            if not self._ended:
                self.num_held += 1
            return not self._ended

    def release(self) -> None:
        with self._lock:
            self.num_held -= 1
            self._end_if_unused()

    async def retire(self) -> None:
        """Waits until the last lease has been given back; from then on there are no more."""
        loop, last = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._on_last = partial(loop.call_soon_threadsafe, last.set)
            self._end_if_unused()
        await last.wait()

    def _end_if_unused(self) -> None:
        if self.num_held == 0 and self._on_last is not None and not self._ended:
            self._ended = True
            self._on_last()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class ServedModel(BundleModel):
    """A version of a model, with the engine that decodes it.

    Attributes:
        label: the operator's name of the version: its folder in a repository, else the same as the manifest's.
        leases: one is acquired before a request is submitted, and released when it has ended.
        shadows: versions that get a share of the same requests, 0 to 1, after they are answered: none or one, which
            may change.
    """

    label: str
    provider: Provider
    runner: EngineClient
    metrics: ModelMetrics
    leases: Leases = field(default_factory=Leases)
    shadows: "list[tuple[ServedModel, float]]" = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The versions of one model, and their requests.

    Attributes:
        canary_share: of the requests that name no version, 0 to 1.
        named: versions that answer only requests that name them.
    """

    stable: ServedModel
    canary: ServedModel | None = None
    canary_share: float = 0.0
    shadow: ServedModel | None = None
    named: tuple[ServedModel, ...] = ()

    def all(self) -> list[ServedModel]:
        """Returns each version once, the stable one first."""
        versions = (self.stable, self.canary, self.shadow, *self.named)
        return list(dict.fromkeys(version for version in versions if version is not None))

    def role_of(self, model: ServedModel) -> Role:
        roles: dict[ServedModel | None, Role] = {self.shadow: "shadow", self.canary: "canary", self.stable: "stable"}
        return roles.get(model, "named")

    def find(self, version: str) -> ServedModel:
        """Returns the named version, or the stable one if none is named. Raises UnknownVersion."""
        if not version:
            return self.stable
        versions = self.all()
        # If the label of one version is the digest of another, the label counts.
        names = {model.manifest.version: model for model in versions} | {model.label: model for model in versions}
        if version not in names:
            raise UnknownVersion(self.stable.name, version, [model.label for model in versions])
        return names[version]

    def choose(self, version: str) -> ServedModel:
        """Returns the version that answers a request; the canary gets a share. Raises UnknownVersion."""
        if version or self.canary is None:
            return self.find(version)
        takes_canary = random.random() < self.canary_share
        self.stable.metrics.routed("canary" if takes_canary else "stable")
        return self.canary if takes_canary else self.stable


class Catalogue:
    """The served models. Until it is opened, when the first models have been checked, look-ups raise NotReady.

    Attributes:
        closing: set when the server is about to end, so that streams stop reading requests.
    """

    def __init__(self) -> None:
        self._routes: dict[str, Routes] = {}
        self.is_open = False
        self.closing = asyncio.Event()

    def open(self) -> None:
        self.is_open = True

    def put(self, routes: Routes) -> None:
        """Adds a model, or replaces its routes."""
        self._routes[routes.stable.name] = routes

    def drop(self, name: str) -> None:
        self._routes.pop(name, None)

    def all(self) -> list[Routes]:
        """Returns the routes of every model, in the order in which the models came. Raises NotReady."""
        if not self.is_open:
            raise NotReady
        return list(self._routes.values())

    def runners(self) -> list[EngineClient]:
        """Returns the engines of every version of every model. Raises NotReady."""
        return [model.runner for routes in self.all() for model in routes.all()]

    def routes(self, name: str) -> Routes:
        """Returns the routes of a model; an empty name means the only one.

        Raises:
            NotReady, UnknownModel, InvalidArgument: empty, and there are several.
        """
        if not self.is_open:
            raise NotReady
        if not name and len(self._routes) > 1:
            raise InvalidArgument(Violation("model", "empty", f"one of {', '.join(sorted(self._routes))}"))
        routes = self._routes.get(self.label_of(name))
        if routes is None:
            raise UnknownModel(name, list(self._routes))
        return routes

    def lease(self, name: str, version: str = "") -> ServedModel:
        """Returns the version that answers a request, with a lease. Raises UnknownVersion, and those of `routes`."""
        while True:
            model = self.routes(name).choose(version)
            # A version may end between the two; then the routes have changed.
            if model.leases.acquire():
                return model

    def label_of(self, name: str) -> str:
        """Returns the `model` label of a request that names this model; empty if the model is not served."""
        if not name and len(self._routes) == 1:
            return next(iter(self._routes))
        return name if name in self._routes else ""


class Retirement:
    """Ends the engines of versions that are no longer served, each after its last lease and its last answer.

    Iterating over it gives the engines that are about to end.
    """

    def __init__(self) -> None:
        self._ending: dict[EngineClient, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[EngineClient]:
        return iter(tuple(self._ending))

    def add(self, model: ServedModel) -> None:
        """Ends a version after its last request. It must have been removed from the catalogue."""
        self._ending[model.runner] = asyncio.create_task(self._end(model))

    async def _end(self, model: ServedModel) -> None:
        await model.leases.retire()
        await model.runner.finished()
        model.runner.stop()
        model.metrics.unwatch(model.runner)
        del self._ending[model.runner]
