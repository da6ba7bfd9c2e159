"""Everything that `import attendant_client` offers."""

from attendant_client import attention_map
from attendant_client.answers import (
    Answers,
    Delta,
    Evaluation,
    FinishReason,
    Generation,
    HealthStatus,
    Hypothesis,
    Limits,
    ModelInfo,
    Score,
    Source,
    Timings,
)
from attendant_client.blocking import BlockingClient
from attendant_client.bulk import Bulk
from attendant_client.client import AttendantClient
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
from attendant_client.options import GenerateOptions, RequestOptions, Sampling
from attendant_client.streaming import GenerationStream
from attendant_client.version import VERSION

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
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Violation",
    "attention_map",
]
