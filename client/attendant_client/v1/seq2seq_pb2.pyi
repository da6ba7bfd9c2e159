from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class Fate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FATE_UNSPECIFIED: _ClassVar[Fate]
    FATE_LIVES: _ClassVar[Fate]
    FATE_ENDED: _ClassVar[Fate]
    FATE_RANK: _ClassVar[Fate]
    FATE_PREFIX: _ClassVar[Fate]
    FATE_NOT_DRAWN: _ClassVar[Fate]
    FATE_ALTERNATIVE: _ClassVar[Fate]
    FATE_LENGTH: _ClassVar[Fate]
    FATE_SEARCH_ENDED: _ClassVar[Fate]

class SearchEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEARCH_END_UNSPECIFIED: _ClassVar[SearchEnd]
    SEARCH_END_EOS: _ClassVar[SearchEnd]
    SEARCH_END_BOUND: _ClassVar[SearchEnd]
    SEARCH_END_PATIENCE: _ClassVar[SearchEnd]
    SEARCH_END_LENGTH: _ClassVar[SearchEnd]
    SEARCH_END_BANS: _ClassVar[SearchEnd]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_STABLE: _ClassVar[Role]
    ROLE_CANARY: _ClassVar[Role]
    ROLE_SHADOW: _ClassVar[Role]
    ROLE_NAMED: _ClassVar[Role]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_LENGTH: FinishReason
FATE_UNSPECIFIED: Fate
FATE_LIVES: Fate
FATE_ENDED: Fate
FATE_RANK: Fate
FATE_PREFIX: Fate
FATE_NOT_DRAWN: Fate
FATE_ALTERNATIVE: Fate
FATE_LENGTH: Fate
FATE_SEARCH_ENDED: Fate
SEARCH_END_UNSPECIFIED: SearchEnd
SEARCH_END_EOS: SearchEnd
SEARCH_END_BOUND: SearchEnd
SEARCH_END_PATIENCE: SearchEnd
SEARCH_END_LENGTH: SearchEnd
SEARCH_END_BANS: SearchEnd
ROLE_UNSPECIFIED: Role
ROLE_STABLE: Role
ROLE_CANARY: Role
ROLE_SHADOW: Role
ROLE_NAMED: Role

class Tokens(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "text", "tokens", "decoding", "output", "version")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    text: str
    tokens: Tokens
    decoding: DecodingOptions
    output: OutputOptions
    version: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., decoding: _Optional[_Union[DecodingOptions, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class GenerateManyRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[GenerateRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[GenerateRequest, _Mapping]]] = ...) -> None: ...

class DecodingOptions(_message.Message):
    __slots__ = ("beam_size", "num_hypotheses", "length_penalty", "coverage_penalty", "min_length", "max_length", "patience", "no_repeat_ngram_size", "repetition_penalty", "suppress_unk", "target_prefix", "sampling", "min_length_ratio", "max_length_ratio", "alternatives", "length_penalty_offset", "target_prefix_text", "masked_source_positions", "protect_spans", "split_sentences")
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SUPPRESS_UNK_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIX_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_RATIO_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIX_TEXT_FIELD_NUMBER: _ClassVar[int]
    MASKED_SOURCE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PROTECT_SPANS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    beam_size: int
    num_hypotheses: int
    length_penalty: float
    coverage_penalty: float
    min_length: int
    max_length: int
    patience: float
    no_repeat_ngram_size: int
    repetition_penalty: float
    suppress_unk: bool
    target_prefix: Tokens
    sampling: SamplingOptions
    min_length_ratio: float
    max_length_ratio: float
    alternatives: bool
    length_penalty_offset: float
    target_prefix_text: str
    masked_source_positions: _containers.RepeatedScalarFieldContainer[int]
    protect_spans: bool
    split_sentences: bool
    def __init__(self, beam_size: _Optional[int] = ..., num_hypotheses: _Optional[int] = ..., length_penalty: _Optional[float] = ..., coverage_penalty: _Optional[float] = ..., min_length: _Optional[int] = ..., max_length: _Optional[int] = ..., patience: _Optional[float] = ..., no_repeat_ngram_size: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., suppress_unk: _Optional[bool] = ..., target_prefix: _Optional[_Union[Tokens, _Mapping]] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., min_length_ratio: _Optional[float] = ..., max_length_ratio: _Optional[float] = ..., alternatives: _Optional[bool] = ..., length_penalty_offset: _Optional[float] = ..., target_prefix_text: _Optional[str] = ..., masked_source_positions: _Optional[_Iterable[int]] = ..., protect_spans: _Optional[bool] = ..., split_sentences: _Optional[bool] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("attention", "token_log_probs", "replace_unknowns", "trace")
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_UNKNOWNS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    attention: bool
    token_log_probs: bool
    replace_unknowns: bool
    trace: int
    def __init__(self, attention: _Optional[bool] = ..., token_log_probs: _Optional[bool] = ..., replace_unknowns: _Optional[bool] = ..., trace: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("request_id", "model", "source_text", "source_tokens", "target_text", "target_tokens", "include_eos", "output", "version")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TEXT_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_EOS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    source_text: str
    source_tokens: Tokens
    target_text: str
    target_tokens: Tokens
    include_eos: bool
    output: OutputOptions
    version: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., source_text: _Optional[str] = ..., source_tokens: _Optional[_Union[Tokens, _Mapping]] = ..., target_text: _Optional[str] = ..., target_tokens: _Optional[_Union[Tokens, _Mapping]] = ..., include_eos: _Optional[bool] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "model", "version", "hypotheses", "source_tokens", "timings", "warnings", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    version: str
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    source_tokens: _containers.RepeatedScalarFieldContainer[str]
    timings: Timings
    warnings: _containers.RepeatedScalarFieldContainer[str]
    trace: Trace
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., source_tokens: _Optional[_Iterable[str]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "tokens", "score", "log_prob", "token_log_probs", "attention", "finish_reason", "confidence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[str]
    score: float
    log_prob: float
    token_log_probs: _containers.RepeatedScalarFieldContainer[float]
    attention: Attention
    finish_reason: FinishReason
    confidence: float
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[str]] = ..., score: _Optional[float] = ..., log_prob: _Optional[float] = ..., token_log_probs: _Optional[_Iterable[float]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., confidence: _Optional[float] = ...) -> None: ...

class Attention(_message.Message):
    __slots__ = ("rows", "columns", "weights")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("searches",)
    SEARCHES_FIELD_NUMBER: _ClassVar[int]
    searches: _containers.RepeatedCompositeFieldContainer[TracedSearch]
    def __init__(self, searches: _Optional[_Iterable[_Union[TracedSearch, _Mapping]]] = ...) -> None: ...

class TracedSearch(_message.Message):
    __slots__ = ("steps", "ended", "reason")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[TracedStep]
    ended: _containers.RepeatedCompositeFieldContainer[TracedEnd]
    reason: SearchEnd
    def __init__(self, steps: _Optional[_Iterable[_Union[TracedStep, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[TracedEnd, _Mapping]]] = ..., reason: _Optional[_Union[SearchEnd, str]] = ...) -> None: ...

class TracedStep(_message.Message):
    __slots__ = ("live", "attention", "bound", "best_possible")
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    BEST_POSSIBLE_FIELD_NUMBER: _ClassVar[int]
    live: _containers.RepeatedCompositeFieldContainer[TracedHypothesis]
    attention: Attention
    bound: float
    best_possible: float
    def __init__(self, live: _Optional[_Iterable[_Union[TracedHypothesis, _Mapping]]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ..., bound: _Optional[float] = ..., best_possible: _Optional[float] = ...) -> None: ...

class TracedHypothesis(_message.Message):
    __slots__ = ("parent", "token", "log_prob", "total", "score", "candidates", "banned")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    BANNED_FIELD_NUMBER: _ClassVar[int]
    parent: int
    token: str
    log_prob: float
    total: float
    score: float
    candidates: _containers.RepeatedCompositeFieldContainer[TracedCandidate]
    banned: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parent: _Optional[int] = ..., token: _Optional[str] = ..., log_prob: _Optional[float] = ..., total: _Optional[float] = ..., score: _Optional[float] = ..., candidates: _Optional[_Iterable[_Union[TracedCandidate, _Mapping]]] = ..., banned: _Optional[_Iterable[str]] = ...) -> None: ...

class TracedCandidate(_message.Message):
    __slots__ = ("token", "log_prob", "total", "fate")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FATE_FIELD_NUMBER: _ClassVar[int]
    token: str
    log_prob: float
    total: float
    fate: Fate
    def __init__(self, token: _Optional[str] = ..., log_prob: _Optional[float] = ..., total: _Optional[float] = ..., fate: _Optional[_Union[Fate, str]] = ...) -> None: ...

class TracedEnd(_message.Message):
    __slots__ = ("step", "live", "finish_reason", "log_prob", "score", "hypothesis")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_FIELD_NUMBER: _ClassVar[int]
    step: int
    live: int
    finish_reason: FinishReason
    log_prob: float
    score: float
    hypothesis: int
    def __init__(self, step: _Optional[int] = ..., live: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., log_prob: _Optional[float] = ..., score: _Optional[float] = ..., hypothesis: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue", "encode", "decode", "total", "steps", "mean_batch_rows")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MEAN_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    queue: float
    encode: float
    decode: float
    total: float
    steps: int
    mean_batch_rows: float
    def __init__(self, queue: _Optional[float] = ..., encode: _Optional[float] = ..., decode: _Optional[float] = ..., total: _Optional[float] = ..., steps: _Optional[int] = ..., mean_batch_rows: _Optional[float] = ...) -> None: ...

class GenerateStreamResponse(_message.Message):
    __slots__ = ("delta", "response")
    class Delta(_message.Message):
        __slots__ = ("tokens", "text")
        TOKENS_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        tokens: _containers.RepeatedScalarFieldContainer[str]
        text: str
        def __init__(self, tokens: _Optional[_Iterable[str]] = ..., text: _Optional[str] = ...) -> None: ...
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    delta: GenerateStreamResponse.Delta
    response: GenerateResponse
    def __init__(self, delta: _Optional[_Union[GenerateStreamResponse.Delta, _Mapping]] = ..., response: _Optional[_Union[GenerateResponse, _Mapping]] = ...) -> None: ...

class GenerateBatchResponse(_message.Message):
    __slots__ = ("request_id", "response", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response: GenerateResponse
    error: _status_pb2.Status
    def __init__(self, request_id: _Optional[str] = ..., response: _Optional[_Union[GenerateResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GenerateManyResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GenerateBatchResponse]
    def __init__(self, results: _Optional[_Iterable[_Union[GenerateBatchResponse, _Mapping]]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("request_id", "model", "version", "log_prob", "source_tokens", "target_tokens", "token_log_probs", "attention", "warnings")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    version: str
    log_prob: float
    source_tokens: _containers.RepeatedScalarFieldContainer[str]
    target_tokens: _containers.RepeatedScalarFieldContainer[str]
    token_log_probs: _containers.RepeatedScalarFieldContainer[float]
    attention: Attention
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., log_prob: _Optional[float] = ..., source_tokens: _Optional[_Iterable[str]] = ..., target_tokens: _Optional[_Iterable[str]] = ..., token_log_probs: _Optional[_Iterable[float]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "precision", "provider", "architecture", "source_vocabulary_size", "target_vocabulary_size", "limits", "defaults", "evaluation", "manifest_json", "label", "role", "description", "examples")
    class ArchitectureEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    precision: str
    provider: str
    architecture: _containers.ScalarMap[str, str]
    source_vocabulary_size: int
    target_vocabulary_size: int
    limits: Limits
    defaults: DecodingOptions
    evaluation: _containers.RepeatedCompositeFieldContainer[EvaluationResult]
    manifest_json: str
    label: str
    role: Role
    description: str
    examples: _containers.RepeatedCompositeFieldContainer[Example]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., precision: _Optional[str] = ..., provider: _Optional[str] = ..., architecture: _Optional[_Mapping[str, str]] = ..., source_vocabulary_size: _Optional[int] = ..., target_vocabulary_size: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., defaults: _Optional[_Union[DecodingOptions, _Mapping]] = ..., evaluation: _Optional[_Iterable[_Union[EvaluationResult, _Mapping]]] = ..., manifest_json: _Optional[str] = ..., label: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., description: _Optional[str] = ..., examples: _Optional[_Iterable[_Union[Example, _Mapping]]] = ...) -> None: ...

class Example(_message.Message):
    __slots__ = ("source", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_source_tokens", "max_target_tokens", "max_beam_size", "max_num_hypotheses", "max_source_characters", "max_target_characters")
    MAX_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    MAX_SOURCE_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_TARGET_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    max_source_tokens: int
    max_target_tokens: int
    max_beam_size: int
    max_num_hypotheses: int
    max_source_characters: int
    max_target_characters: int
    def __init__(self, max_source_tokens: _Optional[int] = ..., max_target_tokens: _Optional[int] = ..., max_beam_size: _Optional[int] = ..., max_num_hypotheses: _Optional[int] = ..., max_source_characters: _Optional[int] = ..., max_target_characters: _Optional[int] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("metric", "value", "protocol", "num_examples")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    metric: str
    value: float
    protocol: str
    num_examples: int
    def __init__(self, metric: _Optional[str] = ..., value: _Optional[float] = ..., protocol: _Optional[str] = ..., num_examples: _Optional[int] = ...) -> None: ...
