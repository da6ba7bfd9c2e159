"""Which path leads to which method of the service: read by the server and by its OpenAPI document."""

import re
from dataclasses import dataclass

from attendant.server.grpc.service import SERVICE

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

    @property
    def query_parameters(self) -> list[str]:
        """The other fields of what is got, and whether a stream is wanted."""
        if self.verb == "GET":
            fields = SERVICE.methods_by_name[self.method].input_type.fields_by_name
            return [name for name in fields if name not in self.path_parameters]
        return [] if self.streaming is None else [STREAM]


ROUTES = (
    ApiRoute("POST", "/v1/generate", "Generate", streaming="GenerateStream"),
    ApiRoute("POST", "/v1/generate_many", "GenerateMany"),
    ApiRoute("POST", "/v1/score", "Score"),
    ApiRoute("GET", "/v1/models", "ListModels"),
    ApiRoute("GET", "/v1/models/{model}", "GetModel"),
)
