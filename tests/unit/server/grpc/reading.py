"""What the server reads of a request to a fake model, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.catalogue.models import ServedModel
from attendant.server.errors import InvalidArgument
from attendant.server.grpc.requests import read_generate
from attendant.server.metrics import Metrics
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.serving import fake_bundle, fake_stepper, serve_fake

Decoding = messages.DecodingOptions


def model(*, max_rows: int = 8, attention: bool = True, **defaults: Any) -> ServedModel:
    bundle = fake_bundle(attention=attention, **defaults)
    return serve_fake(fake_stepper(), Metrics(CollectorRegistry()), bundle, max_rows=max_rows)


def options_of(decoding: Decoding | None = None, attention: bool = False, **how: Any) -> DecodingOptions:
    request = messages.GenerateRequest(
        text="abc", decoding=decoding, output=messages.OutputOptions(attention=attention)
    )
    return read_generate(request, model(**how)).content.options


def refused(read: Callable[[Any, ServedModel], Any], request: Any, served: ServedModel | None = None) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        read(request, served or model())
    return {one.field: one.description for one in caught.value.violations}


def refused_decoding(decoding: Decoding, **how: Any) -> dict[str, str]:
    return refused(read_generate, messages.GenerateRequest(text="abc", decoding=decoding), model(**how))
