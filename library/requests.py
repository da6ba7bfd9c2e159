"""Keyword arguments to requests, by the checks that the server makes."""

from collections.abc import Mapping
from typing import Any

import grpc

import attendant_client
from attendant.runtime import requests as reading
from attendant.runtime.bundle.bundle import BundleModel
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.requests import ReadRequest, Side, Violations, drawn, read_decoding, summary
from attendant_client import Source
from attendant_client.messages import generate_request, score_request, set_fields
from attendant_client.options import DecodingFields, OutputFields, check_names


class Options(DecodingFields, OutputFields, total=False):
    """What `generate` takes by keyword: the API's options, by their names there."""


def read_generate(source: Source, options: Mapping[str, Any], model: BundleModel) -> ReadRequest:
    """Raises TypeError, ValueError: an option of a wrong name or type; InvalidArgument: what the model can't do."""
    check_names(options, Options)
    request = generate_request(source, "", options)
    given = set_fields(request.decoding)

    def read_options(num_source_tokens: int, attention: bool, violations: Violations) -> DecodingOptions | None:
        read, found = read_decoding(given, model, num_source_tokens, attention=attention)
        violations.found += found
        return read if read is None or "seed" in given.get("sampling", {}) else drawn(read)

    violations = Violations()
    read = reading.read_generate(_side("", source), set_fields(request.output), model, read_options, violations)
    return _whole(read, violations)


def read_score(
    source: Source, target: Source, model: BundleModel, *, include_eos: bool, attention: bool
) -> ReadRequest:
    """Likewise."""
    request = score_request(source, target, request_id="", model="", include_eos=include_eos, attention=attention)
    violations = Violations()
    read = reading.read_score(
        _side("source_", source),
        _side("target_", target),
        set_fields(request.output),
        model,
        violations,
        include_eos=include_eos,
    )
    return _whole(read, violations)


def _side(prefix: str, given: Source) -> Side:
    return Side(prefix + ("text" if isinstance(given, str) else "tokens"), given)


def _whole(read: ReadRequest | None, violations: Violations) -> ReadRequest:
    if read is None:
        found = tuple(attendant_client.Violation(one.field, one.description) for one in violations.found)
        raise attendant_client.InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, summary(violations.found), found)
    return read
