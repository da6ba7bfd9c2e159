"""Bundles in this process, without a server: `attendant.load`. It needs the server's dependencies, not torch.

The checks, the engine and the answers are the server's; the options and the types of answers are the client's.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, Unpack, get_args, overload

import grpc
import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer

import attendant_client
from attendant.runtime import requests as reading
from attendant.runtime.answers import answer_fields, score_fields
from attendant.runtime.bundle.bundle import Bundle, BundleModel, limits_in_force, open_bundle, refuse_few_rows
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.runtime.bundle_stepper import BundleStepper, default_precision, open_checked
from attendant.runtime.errors import UserError, Violations, shown, summary
from attendant.runtime.files import path_of
from attendant.runtime.growing_answer import GrowingAnswer
from attendant.runtime.process import MAX_THREADS, available_cpus, limited
from attendant.runtime.requests import ReadRequest, Side, read_decoding
from attendant.runtime.stepper import Floats
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import EngineRequest, Outcome, Result, StepResult, joined_result
from attendant.server.engine.scheduler import Budget
from attendant_client import Answers, Delta, FinishReason, InvalidArgument, Sampling, Source, messages
from attendant_client.client import Streamed
from attendant_client.errors import of_source
from attendant_client.types import DecodingFields, OutputFields, check_names

__all__ = ["Generation", "Hypothesis", "InvalidArgument", "Model", "Options", "Sampling", "Score", "UserError", "load"]

Encode = Callable[[str], Sequence[str]]
"""Returns the tokens of a text."""

Decode = Callable[[Sequence[str]], str]
"""Returns the text of tokens."""


class FunctionTokenizer(Tokenizer):
    """A bundle's vocabulary, whose texts are segmented and joined by functions.

    Tokens that the vocabulary lacks become UNK. Exceptions of a function are raised to the caller of the model.
    """

    def __init__(self, vocabulary: Tokenizer, encode: Encode | None, decode: Decode | None) -> None:
        """Takes the functions; without `encode`, texts are refused; without `decode`, blanks join tokens."""
        super().__init__(LibraryTokenizer.from_str(vocabulary.to_text()))
        self._encode, self._decode = encode, decode
        self.takes_texts = encode is not None
        # A function may join the first tokens otherwise when more follow.
        self.grows = decode is None

    def encode(self, text: str) -> list[int]:
        ids = [self._library.token_to_id(token) for token in self.words_of(text)]
        return [UNK_ID if i is None or (i < len(SPECIAL_TOKENS)) else i for i in ids]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return list(map(self.encode, texts))

    def words_of(self, text: str) -> list[str]:
        assert self._encode is not None
        tokens = self._encode(text)
        is_list = isinstance(tokens, Sequence) and not isinstance(tokens, str)
        if not is_list or not all(isinstance(token, str) for token in tokens):
            raise TypeError(f"encode returned {tokens!r} for {text!r}, must be a list of tokens")
        return list(tokens)

    def opening(self, text: str) -> tuple[list[int], str]:
        """Returns the ids of a text, which is taken as complete: no function returns the possible continuations."""
        return self.encode(text), ""

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_tokens(self.tokens_of(i for i in ids if i >= len(SPECIAL_TOKENS) or i == UNK_ID))

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        if self._decode is None:
            return super().decode_tokens(tokens)
        text = self._decode(list(tokens))
        if not isinstance(text, str):
            raise TypeError(f"decode returned {text!r}, must be a text")
        return text


class _WithArrays:
    """Compares a dataclass whose fields may be arrays, for which `==` returns no truth value."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    log_prob: float

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__
        )

    def __hash__(self) -> int:
        return hash(self.log_prob)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hypothesis(_WithArrays, attendant_client.Hypothesis):
    """The client's hypothesis, with attention as an array.

    Attributes:
        attention: float32 [summands of `log_prob`, source tokens]; None unless requested.
    """

    attention: Floats | None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation(attendant_client.Generation):
    """The client's generation, with attention as arrays; `request_id` is empty."""

    hypotheses: tuple[Hypothesis, ...]

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score(_WithArrays, attendant_client.Score):
    """The client's score, with attention as in a hypothesis; `request_id` is empty."""

    attention: Floats | None  # type: ignore[assignment]


class Options(DecodingFields, OutputFields, total=False):
    """The keywords of `generate`: the API's options, by their names there."""


def read_generate(source: Source, options: Mapping[str, Any], model: BundleModel) -> ReadRequest:
    """Checks a request. Raises TypeError, ValueError: an option of a wrong name or type; InvalidArgument: others."""
    check_names(options, Options)
    request = messages.generate_request(source, "", options)
    fields = messages.set_fields(request.decoding)
    violations, output, side = Violations(), messages.set_fields(request.output), _side("", source)
    read = reading.read_generate(side, fields, partial(read_decoding, fields, model), output, model, violations)
    return _whole(read, violations)


def read_score(
    source: Source, target: Source, model: BundleModel, *, include_eos: bool, attention: bool
) -> ReadRequest:
    """Checks a request to score, as `read_generate`."""
    request = messages.score_request(source, target, include_eos=include_eos, attention=attention)
    violations = Violations()
    read = reading.read_score(
        _side("source_", source),
        _side("target_", target),
        messages.set_fields(request.output),
        model,
        violations,
        include_eos=include_eos,
    )
    return _whole(read, violations)


def _side(prefix: str, value: Source) -> Side:
    return Side(prefix + ("text" if isinstance(value, str) else "tokens"), value)


def _whole(read: ReadRequest | None, violations: Violations) -> ReadRequest:
    if read is None:
        all_wrong = tuple(attendant_client.Violation(v.field, v.description) for v in violations)
        raise attendant_client.InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, summary(violations), all_wrong)
    return read


MAX_ROWS: Final = 256
MAX_BUDGET_ROWS: Final = 65536
MAX_SOURCE_POSITIONS: Final = 32768  # The default of the server's engines.


def load(
    path: str | os.PathLike[str],
    *,
    precision: Precision | None = None,
    provider: Provider = "cpu",
    threads: int | None = None,
    max_rows: int = MAX_ROWS,
    encode_source: Encode | None = None,
    encode_target: Encode | None = None,
    decode_target: Decode | None = None,
) -> "Model":
    """Opens a bundle and checks it on this host, as a server does: its digests, and that it decodes its examples.

    Args:
        path: the bundle's folder.
        precision: fp32, int8 or fp16; if None, the bundle's default for the provider.
        provider: cpu or cuda.
        threads: of a CPU; if None, all that this process may use.
        max_rows: upper bound of live hypotheses that are stepped together, and so of beams.
        encode_source, encode_target: only for a bundle that takes tokens: the function that segments a text into them.
            Without it such a bundle's sources (or targets to score, and prefixes) are tokens.
        decode_target: likewise, the function that joins tokens to a text; if None, blanks do.

    Raises:
        UserError: the bundle is refused, or lacks the precision; the provider is missing; too few rows; an invalid
            option.
    """
    threads, max_rows = messages.plain_number(threads), messages.plain_number(max_rows)
    folder = path_of("path", path)
    if precision is not None:
        _check_choice("precision", precision, Precision, ", or None for the bundle's own choice")
    _check_choice("provider", provider, Provider)
    if threads is not None:
        _check_count("threads", threads, MAX_THREADS, ", or None for as many as this process may use")
    _check_count("max_rows", max_rows, MAX_BUDGET_ROWS)
    functions = {"encode_source": encode_source, "encode_target": encode_target, "decode_target": decode_target}
    options = {"precision": precision, "provider": provider, "threads": threads, "max_rows": max_rows, **functions}

    def opened() -> "Model":
        bundle = open_bundle(folder)
        refuse_few_rows(bundle.manifest, max_rows, "max_rows")
        source = _with_functions("source", bundle.source_tokenizer, encode_source, None)
        target = _with_functions("target", bundle.target_tokenizer, encode_target, decode_target)
        chosen = precision or default_precision(bundle, provider)
        stepper = open_checked(bundle, chosen, provider, threads or available_cpus())
        bundle = replace(bundle, source_tokenizer=source, target_tokenizer=target)
        return Model(bundle, stepper, max_rows=max_rows, loaded_with=options)

    return limited(opened, f"the bundle {folder} is refused")


def _with_functions(side: str, tokenizer: Tokenizer, encode: Encode | None, decode: Decode | None) -> Tokenizer:
    """Returns the tokenizer of a side, by the caller's functions if there are any.

    Raises:
        UserError: the bundle segments texts itself, or `encode` or `decode` is not a function.
    """
    functions = {
        f"{name}_{side}": value for name, value in (("encode", encode), ("decode", decode)) if value is not None
    }
    for name, value in functions.items():
        if not callable(value):
            raise UserError(f"{name}={shown(value)}: must be a function")
        if tokenizer.takes_texts:
            raise UserError(f"{name}: this bundle segments texts itself, by its {side}_tokenizer.json: leave it out")
    return tokenizer if encode is decode is None else FunctionTokenizer(tokenizer, encode, decode)


def _check_choice(name: str, value: object, choices: Any, otherwise: str = "") -> None:
    *others, last = get_args(choices)
    if value not in get_args(choices):
        raise UserError(f"{name}={shown(value)}: must be {', '.join(others)} or {last}{otherwise}")


def _check_count(name: str, value: object, most: int, otherwise: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UserError(f"{name}={shown(value)}: must be a whole number from 1 to {most}{otherwise}")


def _loaded_again(path: Path, version: str, options: Mapping[str, Any]) -> "Model":
    """Loads a pickled model again. Raises UserError: as `load`; or the folder has another bundle now."""
    model = load(path, **options)
    if model.version != version:
        raise UserError(
            f"{path}: has version {model.version} of {model.name}, and the model was pickled with version {version}: "
            "load and pickle it again"
        )
    return model


class Model:
    """A model that answers in this process; several threads may use it at once.

        with attendant.load("models/g2p-en") as model:
            print(model.generate("face").best.text)

    It is pickled as the path of its bundle and its options of `load`, and loaded again when it is unpickled.

    Wrong values raise `attendant.InvalidArgument`, whose `violations` name every wrong option. A wrong name or type of
    an option raises TypeError or ValueError.

    Attributes:
        bundle: with the manifest, the tokenizers and their vocabularies.
        limits: of a request.
    """

    def __init__(
        self, bundle: Bundle, stepper: BundleStepper, *, max_rows: int, loaded_with: Mapping[str, Any]
    ) -> None:
        """Made by `load`. `loaded_with`: the options of `load`."""
        self.bundle = bundle
        self.limits = limits_in_force(bundle.manifest, max_rows)
        self._stepper: BundleStepper | None = stepper
        self._runs_as = f"{stepper.precision} on {stepper.provider}"
        self._pickled = bundle.path.absolute(), self.version, loaded_with
        self._facts = BundleModel(bundle=bundle, precision=stepper.precision, limits=self.limits)
        self._budget = Budget(max_rows=max_rows, max_source_positions=MAX_SOURCE_POSITIONS)

    def __repr__(self) -> str:
        return f"<attendant model {self.name} {self.version}, {self._runs_as if self._stepper else 'closed'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the graphs and their memory. Running calls are answered; later ones raise RuntimeError."""
        self._stepper = None

    def __reduce__(self) -> tuple[Any, ...]:
        self._open_stepper()
        return _loaded_again, self._pickled

    def _open_stepper(self) -> BundleStepper:
        """Returns the stepper. Raises RuntimeError if the model is closed."""
        if self._stepper is None:
            raise RuntimeError(f"the model {self.name} is closed; load it again with attendant.load")
        return self._stepper

    @property
    def name(self) -> str:
        return self.bundle.manifest.name

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of the manifest's digest."""
        return self.bundle.manifest.version

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, source: str | tuple[str, ...], **options: Unpack[Options]
    ) -> Generation: ...

    @overload
    def generate(
        self, source: Iterable[Source], *, return_errors: Literal[False] = False, **options: Unpack[Options]
    ) -> list[Generation]: ...

    @overload
    def generate(
        self, source: Iterable[Source], *, return_errors: Literal[True], **options: Unpack[Options]
    ) -> list[Generation | InvalidArgument]: ...

    def generate(
        self, source: Any, *, return_errors: bool = False, **options: Unpack[Options]
    ) -> Generation | Sequence[Generation | InvalidArgument]:
        """Decodes one source, or each of a list together with the others, in their order.

        Args:
            source: a text, or its tokens as a tuple; or a list of sources, each a text or tokens.
            return_errors: of a list: return the InvalidArgument of a wrong source or item in its place; otherwise it is
                raised.
            options: the API's (docs/api.md); those that are left out have the bundle's defaults.
        """
        self._open_stepper()
        if _is_one(source):
            request = read_generate(source, options, self._facts)
            return self.generation(request, *self._decode([request]))
        read: list[ReadRequest | InvalidArgument] = []
        for place, item in enumerate(messages.checked_sources(source, return_errors=return_errors)):
            try:
                read.append(item if isinstance(item, InvalidArgument) else read_generate(item, options, self._facts))
            except InvalidArgument as error:
                if not return_errors:
                    raise of_source(place, error) from None
                read.append(error)
        results = iter(self._decode([item for item in read if isinstance(item, ReadRequest)]))
        return Answers(
            item if isinstance(item, InvalidArgument) else self.generation(item, next(results)) for item in read
        )

    def stream(self, source: Source, **options: Unpack[Options]) -> "GenerationStream":
        """Decodes one source, and yields tokens of the best hypothesis and their text as soon as they are certain.

            stream = model.stream("face", beam_size=4)
            for delta in stream:
                print(delta.text, end="")
            print(stream.generation.best.log_prob)

        Args:
            source: a text, or its tokens.
            options: as for `generate`.
        """
        self._open_stepper()
        return GenerationStream(self, read_generate(source, options, self._facts))

    @overload
    def score(  # type: ignore[overload-overlap]
        self, source: str | tuple[str, ...], target: Source, *, include_eos: bool = True, attention: bool = False
    ) -> Score: ...

    @overload
    def score(
        self, source: Iterable[Source], target: Iterable[Source], *, include_eos: bool = True, attention: bool = False
    ) -> list[Score]: ...

    def score(
        self, source: Any, target: Any, *, include_eos: bool = True, attention: bool = False
    ) -> Score | list[Score]:
        """Returns the probability of a target, log P(target | source), in total and per token.

        Args:
            source: a text, or its tokens as a tuple; or a list, and then `target` is a list of the same length.
            target: a text or its tokens.
            include_eos: the target's end counts.
            attention: return the attention weights, too.

        Raises:
            TypeError, ValueError: `target` is not a list as `source`; the lengths differ.
        """
        self._open_stepper()
        for name, value in (("source", source), ("target", target)):
            messages.refuse_frame(name, value)
        read = partial(read_score, model=self._facts, include_eos=include_eos, attention=attention)
        if _is_one(source):
            return self._scores([read(source, target)])[0]
        if isinstance(target, str) or not isinstance(target, Iterable):
            raise TypeError(f"target={shown(target)}: must be a list, as source is")
        sources, targets, requests = list(source), list(target), []
        if len(sources) != len(targets):
            raise ValueError(f"target: has {len(targets)} items, must have as many as source, which has {len(sources)}")
        for place, (source_item, target_item) in enumerate(zip(sources, targets, strict=True)):
            try:
                requests.append(read(source_item, target_item))
            except InvalidArgument as error:
                raise of_source(place, error) from None
            except (TypeError, ValueError) as error:
                error.add_note(f"in source {place} or its target")
                raise
        return self._scores(requests)

    def generation(self, request: ReadRequest, result: Result) -> Generation:
        fields = answer_fields(result.hypotheses, result.trace, request, self._facts)
        for hypothesis in fields["hypotheses"]:
            hypothesis["tokens"] = tuple(hypothesis["tokens"])
            hypothesis["finish_reason"] = FinishReason[hypothesis["finish_reason"].name]
        return Generation(
            request_id="",
            model=self.name,
            version=self.version,
            hypotheses=tuple(Hypothesis(**hypothesis) for hypothesis in fields["hypotheses"]),
            source_tokens=tuple(fields["source_tokens"]),
            timings=messages.timings_of(result.stats),
            warnings=fields["warnings"],
            # By its message, so its numbers have single precision.
            trace=None if fields["trace"] is None else messages.trace_of(fields["trace"]),
        )

    def _scores(self, requests: Sequence[ReadRequest]) -> list[Score]:
        scores = Answers[Score]()
        for request, result in zip(requests, self._decode(requests), strict=True):
            fields = score_fields(result.hypotheses[0], request, self._facts)
            fields |= {side: tuple(fields[side]) for side in ("source_tokens", "target_tokens")}
            scores.append(Score(request_id="", model=self.name, version=self.version, **fields))
        return scores

    def _decode(self, requests: Sequence[ReadRequest]) -> list[Result]:
        """Decodes the requests together and returns their results in order."""
        units = [unit for request in requests for unit in request.units]
        results = {key: _answered(outcome) for step in self.steps(units) for key, outcome in step.outcomes}
        in_order = iter([results[key] for key in range(len(units))])
        return [joined_result(request, list(islice(in_order, len(request.units)))) for request in requests]

    def steps(self, requests: Sequence[ReadRequest], *, streams: bool = False) -> Iterator[StepResult]:
        """Steps an engine of its own, which is cheap to make, until all requests have been answered.

        The key of a request is its place in `requests`.
        """
        text_of = self.bundle.target_tokenizer.decode
        engine = Engine(self._open_stepper(), self._budget, self.bundle.manifest.special_ids, text_of=text_of)
        # Neighbours of similar lengths need little padding; the last ones are short.
        for key in sorted(range(len(requests)), key=lambda key: -len(requests[key].source_ids)):
            request = requests[key]
            engine.submit(EngineRequest(key, request.source_ids, request.options, time.monotonic(), streams=streams))
        while engine.has_work:
            yield engine.step()


class GenerationStream(Streamed[Generation]):
    """Made by `Model.stream`, iterated over once. Leaving it early ends the decoding."""

    def __init__(self, model: Model, request: ReadRequest) -> None:
        self._model = model
        self._request = request

    def __iter__(self) -> Iterator[Delta]:
        units = self._request.units
        growing = GrowingAnswer(self._request, self._model.bundle.target_tokenizer)
        results: dict[int, Result] = {}
        for step in self._model.steps(units, streams=True):
            for place, progress in step.progress:
                growing.add(place, progress)
            for place, outcome in step.outcomes:
                results[place] = _answered(outcome)
                growing.end(place, results[place].hypotheses[0])
            if len(results) == len(units):
                result = joined_result(self._request, [results[place] for place in range(len(units))])
                self._generation = self._model.generation(self._request, result)
            if (piece := growing.grow()) is not None:
                yield Delta(tokens=tuple(piece.tokens), text=piece.text)


def _is_one(source: object) -> bool:
    """Returns whether it is a single source, or an invalid value that is refused as one."""
    return isinstance(source, str | tuple | bytes | bytearray | Mapping) or not isinstance(source, Iterable)


def _answered(outcome: Outcome) -> Result:
    assert isinstance(outcome, Result), "without deadlines and cancellations everything is answered"
    return outcome
