"""What is served now: each version of each model with its engine, and which of them a request gets."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from attendant.runtime.bundle.bundle import BundleModel
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.requests import Violation
from attendant.server.engine.client import EngineClient
from attendant.server.engine.request import Result
from attendant.server.errors import InvalidArgument, NotReady, UnknownModel, UnknownVersion
from attendant.server.metrics import ModelMetrics

Role = Literal["stable", "canary", "shadow", "named"]
"""Of a version: answers requests that name none; answers a share of these; is only compared; answers who names it."""

Shadow = Callable[[Any, Result, str], None]
"""Gets each request that the stable version has answered, the result, and the client's name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class ServedModel(BundleModel):
    """A version of a model, with the engine that decodes it.

    Who holds one may submit requests to it. Its engine ends when it is served no more and nobody holds it.

    Attributes:
        label: what the operator calls the version: its folder in a repository, else the same as the manifest's.
        shadows: that are asked the same: none, or one. They come and go.
    """

    label: str
    provider: Provider
    runner: EngineClient
    metrics: ModelMetrics
    shadows: list[Shadow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The versions of one model, and who gets which.

    Attributes:
        canary_share: of the requests that name no version, 0 to 1.
        named: versions that answer only who names them.
    """

    stable: ServedModel
    canary: ServedModel | None = None
    canary_share: float = 0.0
    shadow: ServedModel | None = None
    named: tuple[ServedModel, ...] = ()

    def all(self) -> list[ServedModel]:
        """Each once, the stable one first."""
        found = (self.stable, self.canary, self.shadow, *self.named)
        return list(dict.fromkeys(one for one in found if one is not None))

    def role_of(self, model: ServedModel) -> Role:
        roles: dict[ServedModel | None, Role] = {self.shadow: "shadow", self.canary: "canary", self.stable: "stable"}
        return roles.get(model, "named")

    def find(self, version: str) -> ServedModel:
        """The version that a request names; where it names none, the stable one or, for a share of them, the canary.

        Raises:
            UnknownVersion
        """
        if version:
            versions = self.all()
            # Where the label of one is another one's digest, the label counts.
            names = {one.manifest.version: one for one in versions} | {one.label: one for one in versions}
            if version not in names:
                raise UnknownVersion(self.stable.name, version, [one.label for one in versions])
            return names[version]
        if self.canary is None:
            return self.stable
        takes_canary = random.random() < self.canary_share
        self.stable.metrics.routed("canary" if takes_canary else "stable")
        return self.canary if takes_canary else self.stable


class Catalogue:
    """The served models. Until it is opened, which is when the first ones have been checked, look-ups raise NotReady.

    Attributes:
        is_open: look-ups find models.
        closing: set when the server is about to end, so that streams stop reading requests.
    """

    def __init__(self) -> None:
        self._routes: dict[str, Routes] = {}
        self.is_open = False
        self.closing = asyncio.Event()

    def open(self) -> None:
        """Look-ups find models from now on."""
        self.is_open = True

    def put(self, routes: Routes) -> None:
        """Adds a model, or replaces its routes."""
        self._routes[routes.stable.name] = routes

    def drop(self, name: str) -> None:
        """Removes a model."""
        self._routes.pop(name, None)

    def all(self) -> list[Routes]:
        """Of every model, in the order in which they came.

        Raises:
            NotReady: none has been opened yet.
        """
        if not self.is_open:
            raise NotReady
        return list(self._routes.values())

    def runners(self) -> list[EngineClient]:
        """Of every version of every model. Raises NotReady."""
        return [model.runner for routes in self.all() for model in routes.all()]

    def routes(self, name: str) -> Routes:
        """Of the model of that name; of the only one where the name is empty.

        Raises:
            NotReady, UnknownModel, InvalidArgument: empty, and there are several.
        """
        if not self.is_open:
            raise NotReady
        if not name and len(self._routes) > 1:
            raise InvalidArgument(Violation("model", "empty", f"one of {', '.join(sorted(self._routes))}"))
        found = self._routes.get(self.label_of(name))
        if found is None:
            raise UnknownModel(name, list(self._routes))
        return found

    def find(self, name: str, version: str = "") -> ServedModel:
        """What answers a request.

        Raises:
            NotReady, UnknownModel, InvalidArgument: see `routes`.
            UnknownVersion
        """
        return self.routes(name).find(version)

    def label_of(self, name: str) -> str:
        """The `model` label of a request that names this model: empty where it is not served."""
        if not name and len(self._routes) == 1:
            return next(iter(self._routes))
        return name if name in self._routes else ""
