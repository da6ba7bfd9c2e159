"""What is served: each bundle with its engine, by name."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.requests.model import BundleModel
from attendant.runtime.requests.violations import Violation
from attendant.server.engine.runner import EngineRunner
from attendant.server.errors import InvalidArgument, NotReady, UnknownModel
from attendant.server.observability.metrics import ModelMetrics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedModel(BundleModel):
    """A bundle with the engine that decodes it."""

    provider: Provider
    runner: EngineRunner
    metrics: ModelMetrics


class Catalogue:
    """The served models. Empty, and saying so, until they have all been checked.

    Attributes:
        closing: set when the server is about to end, so that streams stop reading requests.
    """

    def __init__(self) -> None:
        self._models: dict[str, ServedModel] = {}
        self.closing = asyncio.Event()

    def open(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.name: model for model in models}

    def all(self) -> list[ServedModel]:
        """In the order of the command line.

        Raises:
            NotReady: none has been opened yet.
        """
        if not self._models:
            raise NotReady
        return list(self._models.values())

    def find(self, name: str) -> ServedModel:
        """The model of that name; the only one where the name is empty.

        Raises:
            NotReady, UnknownModel, InvalidArgument: empty, and there are several.
        """
        models = self.all()
        if not name:
            if len(models) > 1:
                raise InvalidArgument(Violation("model", "empty", f"one of {', '.join(sorted(self._models))}"))
            return models[0]
        if name not in self._models:
            raise UnknownModel(name, list(self._models))
        return self._models[name]

    def label_of(self, name: str) -> str:
        """The `model` label of a request that names this model: empty where it is not served."""
        if not name and len(self._models) == 1:
            return next(iter(self._models))
        return name if name in self._models else ""
