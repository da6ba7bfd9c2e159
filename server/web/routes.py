"""Which path leads to which method of the service: read by the server and by its OpenAPI document."""

import re
from dataclasses import dataclass

STREAM = "stream"
"""The parameter that asks for server-sent events."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A path of the API.

    Attributes:
        path: as OpenAPI writes it; its parameters are fields of the method's request.
        streaming: the method that answers where `stream=1` is asked for.
    """

    verb: str
    path: str
    method: str
    streaming: str | None = None

    @property
    def path_parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)


ROUTES = (
    ApiRoute("POST", "/v1/generate", "Generate", streaming="GenerateStream"),
    ApiRoute("POST", "/v1/score", "Score"),
    ApiRoute("GET", "/v1/models", "ListModels"),
    ApiRoute("GET", "/v1/models/{model}", "GetModel"),
)
