"""manifest.json: the description of a bundle, and the single source of truth between export and server.

Every section is a frozen model that refuses unknown keys, so a manifest of another format fails with the key's name.
On disk: JSON, keys sorted, a newline at the end; `digest` is the sha256 of the same text with `digest`
empty.
"""

import hashlib
import json
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "model.sig"  # Signs all other files, and is not listed in the manifest.
NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"

MAX_TOKENS = 65_536  # Upper bound of a manifest's limits of sources and targets, for which memory is reserved.
MAX_BEAM = 1024
MAX_SYMBOLS = 2**24
MAX_QUERIES = 64

Precision = Literal["fp32", "int8", "fp16"]
Provider = Literal["cpu", "cuda"]
Scope = Literal["row", "source"]
Signal = Literal["source_tokens", "unknown_ratio", "length_ratio", "mean_log_prob", "truncated"]


class Section(BaseModel):
    """A part of the manifest.

    Attributes:
        NEWER: fields that older bundles don't have. They are written only if they differ from their defaults, so that
            the digests of those bundles stay the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    NEWER: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        defaults = {name: type(self).model_fields[name].default for name in self.NEWER}
        return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}


class TensorSpec(Section):
    """One input or output of a graph. A symbolic dimension is a string; R, B, S, M, K, N as in runtime/stepper.py."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class GraphSpec(Section):
    """One graph. `file` is relative to the bundle; the manifest's `files` have its size and `sha256`, too."""

    file: str
    sha256: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class StateTensor(Section):
    """A tensor that passes from the encoder, or from one step, to the next.

    Attributes:
        input: its name among the step graph's inputs, and among the encoder's outputs.
        output: its name among the step graph's outputs; None if steps don't change it, as every tensor of scope
            `source`.
    """

    input: str
    output: str | None
    scope: Scope


class GraphPair(Section):
    """The two graphs of one precision, and the tensors that pass between them: int8 stores some as codes.

    Attributes:
        min_queries: attention takes at least this number of queries per source: products of floats round a single
            query in another order than several.
        encode_alone: every source is encoded by itself, without padding, since padding would change the encoder's
            results. Only bundles of users' own modules have it.
    """

    NEWER: ClassVar = frozenset({"encode_alone"})

    encoder: GraphSpec
    decoder_step: GraphSpec
    state: tuple[StateTensor, ...]
    min_queries: int = Field(ge=1, le=MAX_QUERIES)
    encode_alone: bool = False


class SpecialIds(Section):
    """Ids of the target vocabulary's special symbols, which the source vocabulary shares.

    `start` is the symbol that a row is fed in its first step.
    """

    pad: int
    unk: int
    bos: int
    eos: int
    start: int


class SourceSide(Section):
    """The conversion of a source to the encoder's input.

    Attributes:
        append_eos, prepend_bos: of the encoder's input; the special symbols count in no limit.
        tokens_only: requests give tokens: a program outside the bundle segments texts.
    """

    NEWER: ClassVar = frozenset({"prepend_bos", "tokens_only"})

    vocabulary_size: int = Field(ge=1, le=MAX_SYMBOLS)
    append_eos: bool
    prepend_bos: bool = False
    tokens_only: bool = False

    @property
    def num_special(self) -> int:
        """Symbols of the encoder's input that are not the text's."""
        return self.prepend_bos + self.append_eos


class TargetSide(Section):
    """The target's vocabulary.

    Attributes:
        tokens_only: as of a source; the text of an answer is its tokens, joined by blanks.
    """

    NEWER: ClassVar = frozenset({"tokens_only"})

    vocabulary_size: int = Field(ge=1, le=MAX_SYMBOLS)
    tokens_only: bool = False


class Limits(Section):
    """Upper bounds of a request's options. Lengths don't count BOS, EOS or padding."""

    max_source_tokens: int = Field(ge=1, le=MAX_TOKENS)
    max_target_tokens: int = Field(ge=1, le=MAX_TOKENS)
    max_beam_size: int = Field(ge=1, le=MAX_BEAM)
    max_num_hypotheses: int = Field(ge=1, le=MAX_BEAM)


GNMT_OFFSET: Final = 5.0  # The number that Wu et al. (2016, eq. 14) add to the length in their length penalty.
SEARCH_OPTIONS: Final = ("beam_size", "length_penalty", "length_penalty_offset", "patience")
"""The defaults that an evaluation and an export may choose: those of the search for the best hypothesis."""


TEXT_OPTIONS: Final = ("protect_spans", "split_sentences")  # The options that change a text before it is tokenized.


def search_of(options: object) -> dict[str, Any]:
    """Returns an object's attributes that are SEARCH_OPTIONS, by name, without those that are None."""
    return _set_in(options, SEARCH_OPTIONS)


def defaults_of(options: object) -> dict[str, Any]:
    """Returns an object's attributes that are SEARCH_OPTIONS or TEXT_OPTIONS, by name, without those that are None."""
    return _set_in(options, (*SEARCH_OPTIONS, *TEXT_OPTIONS))


def _set_in(options: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name)) is not None}


class DecodingDefaults(Section):
    """The values of options that a request leaves unset.

    Attributes:
        max_length: if None, max_length_ratio decides; without that, limits.max_target_tokens.
        patience: if None, a beam ends when no live hypothesis can still enter the best ones.
        max_length_ratio: target tokens per source token. An unset maximum length is then
            min(limits.max_target_tokens, ceil(max_length_ratio * source tokens) + 10).
        protect_spans, split_sentences: of texts, see runtime/spans.py.
    """

    NEWER: ClassVar = frozenset({"length_penalty_offset", "patience", "max_length_ratio", *TEXT_OPTIONS})

    beam_size: int = Field(1, ge=1)
    num_hypotheses: int = Field(1, ge=1)
    length_penalty: float = Field(0.0, ge=0, le=10)
    length_penalty_offset: float = Field(GNMT_OFFSET, ge=0, le=10)
    max_length: int | None = Field(None, ge=1)
    patience: float | None = Field(None, gt=0, le=10)
    max_length_ratio: float | None = Field(None, gt=0, le=100)
    protect_spans: bool = False
    split_sentences: bool = False

    @property
    def changes_texts(self) -> bool:
        """Texts are changed before they are tokenized."""
        return self.protect_spans or self.split_sentences


class Provenance(Section):
    """The origin of the weights."""

    commit: str
    created: str
    versions: dict[str, str]
    recipe: dict[str, Any]
    data_digest: str
    checkpoint: str


class Evaluation(Section):
    """A measured value.

    Attributes:
        precision: of the arithmetic used.
        difference: its distance from fp32 on the same examples; None if the export did not measure that.
    """

    metric: str
    value: float
    protocol: str
    num_examples: int = Field(ge=0, le=2**53)
    precision: Precision = "fp32"
    difference: float | None = None


class Grid(Section):
    """The inputs on which the graphs were compared with PyTorch."""

    batch_sizes: tuple[int, ...]
    source_lengths: tuple[int, ...]
    beam_sizes: tuple[int, ...]
    num_steps: int


class TokenAgreement(Section):
    """Decodings compared token for token.

    Attributes:
        num_identical: of num_compared, those with identical tokens.
        num_excused: those that differ where the reference's own margin was within ten tolerances, a tie.
    """

    num_compared: int
    num_identical: int
    num_excused: int


class Certificate(Section):
    """The verification of one precision on one provider, and its results.

    Attributes:
        reference: fp32 is compared with PyTorch, int8 with the fp32 graphs, or with the former int8 graphs if their
            factors of 8 bits were halved.
        tolerance: |a - b| <= tolerance * max(1, |b|) held for every element of every tensor; where PyTorch's own
            rounding is larger than that, a small multiple of it (docs/architecture.md). Of int8: for a
            first step's log-probabilities.
        errors: tensor -> the largest |a - b| / max(1, |b|) seen.
        reference_errors: tensor -> the same of PyTorch in float32 against PyTorch in float64: its own rounding.
        arithmetic: matrix, tensor or operation -> how it is computed or stored, and why; empty if all is in fp32.
        batch_invariant: every request's outputs had the same bits alone and in every batch of the grid.
        score_tolerance: the allowed error of golden examples' scores on another host.
    """

    precision: Precision
    provider: str
    runtime_version: str
    host: str
    reference: Literal["pytorch", "fp32", "int8"]
    grid: Grid
    tolerance: float
    errors: dict[str, float]
    reference_errors: dict[str, float]
    arithmetic: dict[str, str]
    tokens: TokenAgreement
    batch_invariant: bool
    score_tolerance: float = Field(ge=0, le=1)


class Distribution(Section):
    """The distribution of a signal: the share of the values up to each edge, and of those above the last edge.

    Attributes:
        edges: ascending.
        shares: one more than edges.
    """

    edges: tuple[float, ...] = Field(max_length=64)
    shares: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    @model_validator(mode="after")
    def _fits(self) -> "Distribution":
        if len(self.shares) != len(self.edges) + 1 or list(self.edges) != sorted(set(self.edges)):
            raise ValueError("edges must ascend, and there must be a share for each and one more")
        return self


class Reference(Section):
    """Quality signals of held-out texts, decoded by the bundle's defaults, with which a server compares its answers.

    Attributes:
        precision: of the arithmetic used.
        data: the name of the texts.
    """

    num_examples: int = Field(ge=1)
    precision: Precision
    data: str
    signals: dict[Signal, Distribution]

    @model_validator(mode="after")
    def _has_all(self) -> "Reference":
        if missing := set(get_args(Signal)) - self.signals.keys():
            raise ValueError(f"signals: {', '.join(sorted(missing))} missing")
        return self


class RightRule(Section):
    """The rule for right answers: the metric, against the nearest of the references, reaches a value.

    Attributes:
        metric: exact_match, chrf, rouge_1, ..., of the answer alone, in percent.
        at_least: 100 for exact_match.
    """

    metric: str
    at_least: float = Field(ge=0, le=100)

    def __str__(self) -> str:
        return "exact match" if self.metric == "exact_match" else f"{self.metric} of at least {self.at_least:g}"


ConfidenceSignal = Literal[
    "mean_surprise",
    "highest_surprise",
    "total_surprise",
    "length_ratio",
    "source_tokens",
    "unknown_ratio",
    "unseen_ratio",
]
"""The signals that runtime/confidence.py computes."""


class SignalTerm(Section):
    """A signal's part in the score of an answer.

    Attributes:
        weight: the score is the sum of weight * signal.
        low, high: an answer with a signal outside of these is unlike all that were held out, and gets the lowest
            probability. If None, there is no limit.
    """

    weight: float
    low: float | None = None
    high: float | None = None


class Calibration(Section):
    """The calibration of confidence: the probability that an answer is right, by its score.

    Attributes:
        right: the rule by which the answers to held-out sources were right or wrong.
        data: the name of these sources and their references.
        precision: of the arithmetic that answered them.
        signals: the terms of the score.
        scores: ascending.
        probabilities: at each of the scores, not descending; linear between two, and constant beyond the first and the
            last.
        warn_below: an answer with a lower confidence comes with a warning.
    """

    right: RightRule
    data: str
    num_examples: int = Field(ge=1)
    precision: Precision
    signals: dict[ConfidenceSignal, SignalTerm]
    scores: tuple[float, ...] = Field(min_length=1, max_length=4096)
    probabilities: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    warn_below: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _fits(self) -> "Calibration":
        if list(self.scores) != sorted(set(self.scores)):
            raise ValueError("scores must ascend")
        if len(self.probabilities) != len(self.scores) or list(self.probabilities) != sorted(self.probabilities):
            raise ValueError("there must be a probability for each score, none lower than the one before")
        return self


class FileEntry(Section):
    size: int = Field(ge=0)
    sha256: str


class Manifest(Section):
    """The description of a bundle.

    Attributes:
        reference: of the precision that a CPU serves by default.
        references: of the other precisions.
        confidence: None if answers have no confidence.
    """

    NEWER: ClassVar = frozenset({"reference", "references", "confidence"})

    format_version: int = FORMAT_VERSION
    name: str = Field(pattern=f"^{NAME_PATTERN}$")
    digest: str = ""
    model: dict[str, Any]
    source: SourceSide
    target: TargetSide
    special_ids: SpecialIds
    graphs: dict[Precision, GraphPair]
    default_precision: dict[str, Precision]
    limits: Limits
    decoding: DecodingDefaults
    provenance: Provenance
    evaluation: tuple[Evaluation, ...]
    certificates: tuple[Certificate, ...]
    reference: Reference | None = None
    references: dict[Precision, Reference] = {}
    confidence: Calibration | None = None
    files: dict[str, FileEntry]

    @property
    def has_our_layers(self) -> bool:
        """The graphs are of a model that a recipe can describe, not of a user's own module or graphs."""
        return "attention" in self.model

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of the digest."""
        return self.digest[:12]

    def reference_of(self, precision: Precision) -> Reference | None:
        """Returns the reference of answers in a precision; None if the bundle has none.

        fp16 is compared with fp32, whose answers differ from it less than int8's. Few exports have fp16, which needs a
        GPU.
        """
        known = {**self.references, **({} if self.reference is None else {self.reference.precision: self.reference})}
        return known.get(precision) or (known.get("fp32") if precision == "fp16" else None)

    def to_text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def computed_digest(self) -> str:
        unsigned = self.model_copy(update={"digest": ""})
        return hashlib.sha256(unsigned.to_text().encode()).hexdigest()

    def signed(self) -> "Manifest":
        return self.model_copy(update={"digest": self.computed_digest()})
