"""Results to messages."""

from attendant_client.v1 import seq2seq_pb2 as pb

from runtime.decoding.hypothesis import FinishReason, Hypothesis
from runtime.stepper import Floats
from server.engine.request import RequestTimings, Result
from server.model import ServedModel
from server.servicers.validation import ParsedRequest

_FINISH_REASONS = {
    FinishReason.EOS: pb.FINISH_REASON_EOS,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def generate_response(
    request: pb.GenerateRequest, parsed: ParsedRequest, result: Result, model: ServedModel
) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        request_id=request.request_id,
        model=model.name,
        version=model.version,
        hypotheses=[_hypothesis(one, request.output, model) for one in result.hypotheses],
        source_tokens=model.bundle.source_tokenizer.tokens_of(parsed.source_ids),
        timings=_timings(result.timings),
    )


def score_response(
    request: pb.ScoreRequest, parsed: ParsedRequest, result: Result, model: ServedModel
) -> pb.ScoreResponse:
    (target,) = result.hypotheses
    return pb.ScoreResponse(
        request_id=request.request_id,
        model=model.name,
        version=model.version,
        log_prob=target.log_prob,
        source_tokens=model.bundle.source_tokenizer.tokens_of(parsed.source_ids),
        target_tokens=model.bundle.target_tokenizer.tokens_of(target.token_ids),
        token_log_probs=target.token_log_probs,
        attention=_attention(target.attention),
    )


def model_message(model: ServedModel) -> pb.Model:
    manifest = model.bundle.manifest
    limits, defaults = model.limits, manifest.decoding
    return pb.Model(
        name=model.name,
        version=model.version,
        precision=model.precision,
        provider=model.provider,
        architecture=flattened(manifest.model),
        source_vocabulary_size=manifest.source.vocabulary_size,
        target_vocabulary_size=manifest.target.vocabulary_size,
        limits=pb.Limits(
            max_source_tokens=limits.max_source_tokens,
            max_target_tokens=limits.max_target_tokens,
            max_beam_size=limits.max_beam_size,
            max_num_hypotheses=limits.max_num_hypotheses,
        ),
        defaults=pb.DecodingOptions(
            beam_size=min(defaults.beam_size, limits.max_beam_size),
            num_hypotheses=min(defaults.num_hypotheses, limits.max_beam_size),
            length_penalty=defaults.length_penalty,
            max_length=defaults.max_length or limits.max_target_tokens,
        ),
        evaluation=[
            pb.EvaluationResult(
                metric=one.metric, value=one.value, protocol=one.protocol, num_examples=one.num_examples
            )
            for one in manifest.evaluation
        ],
        manifest_json=manifest.to_text(),
    )


def flattened(section: dict[str, object], prefix: str = "") -> dict[str, str]:
    """Nested tables to dotted names."""
    flat: dict[str, str] = {}
    for name, value in section.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _hypothesis(hypothesis: Hypothesis, output: pb.OutputOptions, model: ServedModel) -> pb.Hypothesis:
    target = model.bundle.target_tokenizer
    return pb.Hypothesis(
        text=target.decode(hypothesis.token_ids),
        tokens=target.tokens_of(hypothesis.token_ids),
        score=hypothesis.score,
        log_prob=hypothesis.log_prob,
        token_log_probs=hypothesis.token_log_probs if output.token_log_probs else (),
        attention=_attention(hypothesis.attention),
        finish_reason=_FINISH_REASONS[hypothesis.finish_reason],
    )


def _attention(weights: Floats | None) -> pb.Attention | None:
    if weights is None:
        return None
    rows, columns = weights.shape
    return pb.Attention(rows=rows, columns=columns, weights=weights.reshape(-1).tolist())


def _timings(timings: RequestTimings) -> pb.Timings:
    return pb.Timings(
        queue=timings.queue,
        encode=timings.encode,
        decode=timings.decode,
        total=timings.total,
        steps=timings.steps,
        mean_batch_rows=timings.mean_batch_rows,
    )
