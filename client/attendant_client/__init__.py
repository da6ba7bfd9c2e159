"""The typed client of Attendant: calls attention sequence-to-sequence models over gRPC.

    async with AttendantClient("localhost:50051") as client:
        generation = await client.generate("hello", beam_size=4)
        print(generation.best.text)

`attendant_client.errors` draws the errors of calls; `attention_map` draws attention in a terminal. A name's module is
imported when the name is first used: the command sets gRPC's verbosity before gRPC is imported.
"""

import typing as _typing

__all__ = [
    "VERSION",
    "Answers",
    "AttendantClient",
    "AttendantError",
    "BlockingClient",
    "Bulk",
    "DeadlineExceeded",
    "Delta",
    "Evaluation",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "GenerationStream",
    "HealthStatus",
    "Hypothesis",
    "InvalidArgument",
    "Limits",
    "ModelInfo",
    "NotFound",
    "Overloaded",
    "RequestOptions",
    "Sampling",
    "Score",
    "ServerError",
    "Source",
    "Timings",
    "TlsFailed",
    "Trace",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Violation",
    "attention_map",
]

if _typing.TYPE_CHECKING:
    from attendant_client import attention_map
    from attendant_client.blocking import BlockingClient
    from attendant_client.bulk import Bulk
    from attendant_client.client import AttendantClient, GenerationStream
    from attendant_client.errors import (
        AttendantError,
        DeadlineExceeded,
        InvalidArgument,
        NotFound,
        Overloaded,
        ServerError,
        TlsFailed,
        Unauthenticated,
        Unavailable,
        Unimplemented,
        Violation,
    )
    from attendant_client.trace import FinishReason, Trace
    from attendant_client.types import (
        Answers,
        Delta,
        Evaluation,
        GenerateOptions,
        Generation,
        HealthStatus,
        Hypothesis,
        Limits,
        ModelInfo,
        RequestOptions,
        Sampling,
        Score,
        Source,
        Timings,
    )
    from attendant_client.version import VERSION
else:
    from importlib import import_module as _import_module

    def __getattr__(name):
        """Returns a public name from the module that defines it."""
        if name == "attention_map":
            return _import_module("attendant_client.attention_map")
        if name in __all__:
            for module in ("version", "types", "trace", "errors", "bulk", "client", "blocking"):
                if hasattr(defining := _import_module(f"attendant_client.{module}"), name):
                    return getattr(defining, name)
        raise AttributeError(f"module 'attendant_client' has no attribute {name!r}")

    def __dir__():
        """Returns the names that a prompt completes."""
        return sorted({*globals(), *__all__})
