"""Opens a bundle and checks everything that can be checked without running it; reports every difference.

runtime/onnx/stepper.py checks the sessions' real inputs and outputs, runtime/bundle_stepper.py this host's arithmetic.

golden.jsonl has sources with the tokens and scores that they must give on every host. The export chooses examples in
which every decision of the search has a clear margin: another host's last bits don't change the tokens. Scores may
differ by the certificate's `score_tolerance`.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

from pydantic import Field, ValidationError

from attendant.runtime.bundle import graph_io, reading
from attendant.runtime.bundle.bigrams import SeenBigrams
from attendant.runtime.bundle.graph_io import contract_differences
from attendant.runtime.bundle.manifest import (
    FORMAT_VERSION,
    GNMT_OFFSET,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    GraphPair,
    Limits,
    Manifest,
    Precision,
    Section,
)
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, UnknownTokenError
from attendant.runtime.errors import UserError, some_lines
from attendant.runtime.files import reading_error
from attendant.runtime.process import quiet_stderr
from attendant.runtime.stepper import SOURCE_MASK

MAX_EXAMPLES: Final = 1000  # An export chooses 24 per precision.


class GoldenExample(Section):
    """A source, its decoding options, and the best hypothesis that must result.

    Attributes:
        precision: of the graphs that must return it.
        source_tokens: as in a request: without the EOS that the bundle may append.
        length_penalty, length_penalty_offset: as in DecodingDefaults.
        score, log_prob: of the best hypothesis, as the exporting host computed them.
    """

    NEWER: ClassVar = frozenset({"length_penalty_offset"})

    precision: Precision
    source_tokens: tuple[str, ...]
    beam_size: int
    length_penalty: float = Field(ge=0, le=10)
    length_penalty_offset: float = Field(GNMT_OFFSET, ge=0, le=10)
    max_length: int
    target_tokens: tuple[str, ...]
    score: float
    log_prob: float


def parse_golden(text: str) -> tuple[GoldenExample, ...]:
    """Reads the lines of golden.jsonl. Raises ValueError: a line, which is named, is not a golden example."""
    examples = []
    # Only at "\n": symbols may contain other ends of lines, such as U+2028.
    for number, line in enumerate(io.StringIO(text), 1):
        if number > MAX_EXAMPLES:
            raise ValueError(f"golden.jsonl: more than {MAX_EXAMPLES} examples")
        try:
            # As JSON, in which pydantic refuses half a surrogate pair.
            examples.append(GoldenExample.model_validate_json(json.dumps(reading.parse_json(line))))
        except reading.Unfit as error:
            raise ValueError(f"golden.jsonl: line {number}: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            path = "".join(f"{name}: " for name in first["loc"])
            raise ValueError(f"golden.jsonl: line {number}: {path}{first['msg']}") from error
    return tuple(examples)


def golden_text(examples: tuple[GoldenExample, ...]) -> str:
    """Returns golden.jsonl: one JSON object per line, keys sorted."""
    return "".join(
        json.dumps(example.model_dump(mode="json"), sort_keys=True, ensure_ascii=False) + "\n" for example in examples
    )


SOURCE_TOKENIZER_NAME = "source_tokenizer.json"
TARGET_TOKENIZER_NAME = "target_tokenizer.json"
GOLDEN_NAME = "golden.jsonl"
TEXTS = (SOURCE_TOKENIZER_NAME, TARGET_TOKENIZER_NAME, GOLDEN_NAME)
BIGRAMS_NAME = "seen_bigrams.bin"

NUM_EXAMPLES = 3

WORDS_REMEMBERED = 1000  # Limits the cache of a bundle's tokenizer to 8 MiB, because its texts come from anywhere.


class BundleRefused(UserError):
    """A bundle that differs from its manifest; one line per difference."""

    def __init__(self, path: Path, differences: Sequence[str], remedy: str = "; export or copy it again") -> None:
        super().__init__(f"the bundle {path} is refused{remedy}:", some_lines(differences))


class BundleUnreadable(BundleRefused):
    """A bundle with a file or folder that can't be read."""

    def __init__(self, path: Path, name: str, error: OSError) -> None:
        super().__init__(path, [f"{name} can't be read: {reading_error(error)}"], remedy="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle, whose files are those that its manifest lists.

    Attributes:
        seen_bigrams: of the training sources; None if the calibration of confidence does without.
    """

    path: Path
    manifest: Manifest
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    golden: tuple[GoldenExample, ...]
    seen_bigrams: SeenBigrams | None = None

    @property
    def description(self) -> str:
        """The model's purpose in a sentence; empty if its recipe has none."""
        return str(self.manifest.provenance.recipe.get("description", ""))

    def examples(self) -> list[tuple[str, str]]:
        """Returns the texts of up to NUM_EXAMPLES golden examples, source and target, shortest first.

        They are taken at equal distances from the shorter half, so that a page has room for them.
        """
        distinct = {example.source_tokens: example for example in reversed(self.golden)}
        by_length = sorted(distinct.values(), key=lambda example: (len(example.source_tokens), example.source_tokens))
        shorter = by_length[: max(NUM_EXAMPLES, -(-len(by_length) // 2))]
        places = dict.fromkeys(number * (len(shorter) - 1) // (NUM_EXAMPLES - 1) for number in range(NUM_EXAMPLES))
        return [
            (
                self.source_tokenizer.decode_tokens(shorter[place].source_tokens),
                self.target_tokenizer.decode_tokens(shorter[place].target_tokens),
            )
            for place in (places if shorter else ())
        ]

    def graphs_in(self, precision: Precision) -> GraphPair:
        """Returns the graphs of a precision. Raises UserError if the bundle doesn't have it."""
        graphs = self.manifest.graphs
        if precision not in graphs:
            choices = ", ".join(sorted(graphs))
            raise UserError(f"precision {precision} is not in the bundle {self.manifest.name}; it has {choices}")
        return graphs[precision]

    def source_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Returns the encoder's input for a source's tokens: with BOS and EOS around it if the model was trained so."""
        side, ids = self.manifest.source, self.manifest.special_ids
        return [*[ids.bos] * side.prepend_bos, *token_ids, *[ids.eos] * side.append_eos]


def open_bundle(path: Path | str) -> Bundle:
    """Opens the bundle in the folder `path`, which may have any name.

    The folder may be untrusted: links are not followed, and no file is read beyond its limit.

    Raises:
        UserError: there is no bundle in this folder.
        BundleRefused: files, digests, sizes or ids differ from the manifest; the message has a line for each.
        BundleUnreadable: a file can't be read.
    """
    path = Path(path)
    manifest = read_manifest(path)
    texts, differences = _checked_files(path, manifest)
    if differences := [*differences, *_manifest_differences(manifest)]:
        raise BundleRefused(path, differences)
    try:
        bundle = Bundle(
            path=path,
            manifest=manifest,
            source_tokenizer=_tokenizer(SOURCE_TOKENIZER_NAME, texts),
            target_tokenizer=_tokenizer(TARGET_TOKENIZER_NAME, texts),
            golden=parse_golden(_text(GOLDEN_NAME, texts)),
            seen_bigrams=SeenBigrams(texts[BIGRAMS_NAME]) if _needs_bigrams(manifest) else None,
        )
    except ValueError as error:
        raise BundleRefused(path, [str(error)]) from error
    for tokenizer in (bundle.source_tokenizer, bundle.target_tokenizer):
        tokenizer.bound_cache(WORDS_REMEMBERED)
    if differences := [*_vocabulary_differences(bundle)] or [*_golden_differences(bundle)]:
        raise BundleRefused(path, differences)
    return bundle


def read_manifest(path: Path) -> Manifest:
    """Reads and checks `manifest.json` alone.

    Raises:
        UserError: there is no bundle in this folder.
        BundleRefused: another format, a field that is missing, unknown or bad, or a wrong digest.
    """

    def refuse(*lines: str) -> NoReturn:
        raise BundleRefused(path, lines)

    try:
        content: Any = reading.parse_json(reading.read_file(path / MANIFEST_NAME, reading.MAX_MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        state = f"is no bundle, because it has no {MANIFEST_NAME}" if path.is_dir() else "is no folder"
        raise UserError(f"{path} {state}: give the folder of a bundle that attendant export has written") from None
    except OSError as error:
        raise BundleUnreadable(path, MANIFEST_NAME, error) from error
    except ValueError as error:
        refuse(f"{MANIFEST_NAME} can't be read: {error}")
    if not isinstance(content, dict):
        refuse(f"{MANIFEST_NAME} is no JSON object")
    if content.get("format_version") != FORMAT_VERSION:
        refuse(f"format_version is {content.get('format_version')!r}, this version of Attendant reads {FORMAT_VERSION}")
    try:
        manifest = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        refuse(*(f"{MANIFEST_NAME}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))
    if manifest.digest != manifest.computed_digest():
        refuse(f"{MANIFEST_NAME}: digest is {manifest.digest!r}, its content gives {manifest.computed_digest()!r}")
    return manifest


def files_of(path: Path) -> tuple[dict[str, int], list[str]]:
    """Calls `files_in`. Raises BundleRefused: a folder can't be read, or there are too many files."""
    try:
        return reading.files_in(path)
    except OSError as error:
        raise BundleUnreadable(path, error.filename, error) from error
    except reading.Unfit as error:
        raise BundleRefused(path, [str(error)]) from error


def _checked_files(path: Path, manifest: Manifest) -> tuple[dict[str, bytes], list[str]]:
    """Returns tokenizers, golden examples and bigrams as they are on the disk, and one line per fault of any file."""
    present, differences = files_of(path)
    is_odd = {line.partition(":")[0] for line in differences}
    for name in sorted(present.keys() - manifest.files.keys() - {MANIFEST_NAME, SIGNATURE_NAME}):
        differences.append(f"{name}: not listed in {MANIFEST_NAME}; remove it")
    if (size := sum(entry.size for entry in manifest.files.values())) > reading.MAX_BUNDLE_BYTES:
        return {}, [*differences, f"files: {size} bytes in all, a bundle may have {reading.MAX_BUNDLE_BYTES}"]
    graphs = {graph.file for pair in manifest.graphs.values() for graph in (pair.encoder, pair.decoder_step)}
    texts: dict[str, bytes] = {}
    for name, entry in sorted(manifest.files.items()):
        if name not in present:
            differences += [] if name in is_odd else [f"{name}: missing"]
        elif present[name] != entry.size:
            differences.append(f"{name}: {present[name]} bytes, the manifest has {entry.size}")
        else:
            try:
                with reading.open_file(
                    path / name, reading.MAX_GRAPH_BYTES if name in graphs else reading.MAX_TEXT_BYTES
                ) as file:
                    if (digest := hashlib.file_digest(file, "sha256").hexdigest()) != entry.sha256:
                        differences.append(f"{name}: sha256 is {digest}, the manifest has {entry.sha256}")
                    elif name in (*TEXTS, BIGRAMS_NAME):
                        file.seek(0)
                        texts[name] = file.read(entry.size)
            except OSError as error:
                raise BundleUnreadable(path, name, error) from error
            except reading.Unfit as error:
                differences.append(f"{name}: {error}")
    return texts, differences


def _text(name: str, texts: dict[str, bytes]) -> str:
    try:
        return texts[name].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {error}") from None


def _tokenizer(name: str, texts: dict[str, bytes]) -> Tokenizer:
    try:
        # A panic of the library also prints its message on standard error.
        with quiet_stderr(only_failures=True):
            tokenizer = Tokenizer.from_text(_text(name, texts))
            tokenizer.check_encoding()
        return tokenizer
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _needs_bigrams(manifest: Manifest) -> bool:
    return manifest.confidence is not None and "unseen_ratio" in manifest.confidence.signals


def _manifest_differences(manifest: Manifest) -> Iterator[str]:
    """Yields a line for each entry that contradicts another one or is missing."""
    for name in (*TEXTS, BIGRAMS_NAME) if _needs_bigrams(manifest) else TEXTS:
        if name not in manifest.files:
            yield f"{name}: not listed in {MANIFEST_NAME}"
    if not manifest.graphs:
        yield "graphs: there are none"
    certified = {certificate.precision for certificate in manifest.certificates}
    for precision, pair in manifest.graphs.items():
        if precision not in certified:
            yield f"certificates: none for {precision}: these graphs were never verified"
        for graph in (pair.encoder, pair.decoder_step):
            entry = manifest.files.get(graph.file)
            if entry is None:
                yield f"{graph.file}: not listed in {MANIFEST_NAME}"
            elif entry.sha256 != graph.sha256:
                yield f"{graph.file}: sha256 is {graph.sha256} in graphs and {entry.sha256} in files"
        yield from contract_differences(pair)
    for provider, precision in manifest.default_precision.items():
        if precision not in manifest.graphs:
            yield f"default_precision.{provider}: {precision} is not among the graphs"
    decoding, limits = manifest.decoding, manifest.limits
    for name, value, most in (
        ("beam_size", decoding.beam_size, limits.max_beam_size),
        ("num_hypotheses", decoding.num_hypotheses, min(limits.max_num_hypotheses, decoding.beam_size)),
        ("max_length", decoding.max_length or 1, limits.max_target_tokens),
    ):
        if value > most:
            yield f"decoding.{name}: {value}, must be 1 to {most}"


def _vocabulary_differences(bundle: Bundle) -> Iterator[str]:
    manifest = bundle.manifest
    for name, tokenizer, side in (
        (SOURCE_TOKENIZER_NAME, bundle.source_tokenizer, manifest.source),
        (TARGET_TOKENIZER_NAME, bundle.target_tokenizer, manifest.target),
    ):
        if tokenizer.vocabulary_size != side.vocabulary_size:
            yield f"{name}: {tokenizer.vocabulary_size} symbols, the manifest has {side.vocabulary_size}"
        if tokenizer.takes_texts == side.tokens_only:
            yield f"{name}: takes {'texts' if tokenizer.takes_texts else 'tokens only'}, unlike in the manifest"
    ids = manifest.special_ids
    for name, actual, expected in (
        ("pad", ids.pad, PAD_ID),
        ("unk", ids.unk, UNK_ID),
        ("bos", ids.bos, BOS_ID),
        ("eos", ids.eos, EOS_ID),
    ):
        if actual != expected:
            yield f"special_ids.{name}: {actual}, the tokenizers have {expected}"
    if not 0 <= ids.start < manifest.target.vocabulary_size:
        yield f"special_ids.start: {ids.start} is not in the target vocabulary"


def _golden_differences(bundle: Bundle) -> Iterator[str]:
    """Yields a line for each example that no request can have, and each precision without examples."""
    limits = bundle.manifest.limits
    for precision in sorted(bundle.manifest.graphs.keys() - {example.precision for example in bundle.golden}):
        yield f"{GOLDEN_NAME}: no example in {precision}: these graphs would be served unseen"
    for number, example in enumerate(bundle.golden, 1):
        for name, value, most in (
            ("source_tokens", len(example.source_tokens), limits.max_source_tokens),
            ("beam_size", example.beam_size, limits.max_beam_size),
            ("max_length", example.max_length, limits.max_target_tokens),
        ):
            if not 1 <= value <= most:
                yield f"{GOLDEN_NAME}: line {number}: {name} is {value}, must be 1 to {most}"
        try:
            bundle.source_tokenizer.ids_of(example.source_tokens)
        except UnknownTokenError as error:
            yield f"{GOLDEN_NAME}: line {number}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BundleModel:
    """A bundle's graphs in one precision, and the limits of requests; equal only to itself.

    Attributes:
        limits: the manifest's, lowered to the engine's budget of rows.
    """

    bundle: Bundle
    precision: Precision
    limits: Limits

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def has_attention(self) -> bool:
        return graph_io.has_attention(self.manifest.graphs[self.precision].decoder_step)

    @property
    def masks_positions(self) -> bool:
        """Requests may mask positions of the source. A user's own module may give its mask another meaning."""
        state = self.manifest.graphs[self.precision].state
        return self.manifest.has_our_layers and any(tensor.input == SOURCE_MASK for tensor in state)


def limits_in_force(manifest: Manifest, max_rows: int) -> Limits:
    """Returns the manifest's limits, with beams no wider than the engine's `max_rows`."""
    limits = manifest.limits
    return limits.model_copy(
        update={
            "max_beam_size": min(limits.max_beam_size, max_rows),
            "max_num_hypotheses": min(limits.max_num_hypotheses, max_rows),
        }
    )


def refuse_few_rows(manifest: Manifest, max_rows: int, option: str) -> None:
    """Raises UserError, which names the option, if the bundle's default beam needs more rows than there are."""
    if max_rows < (beam_size := manifest.decoding.beam_size):
        raise UserError(
            f"{option} is {max_rows}: {manifest.name} searches with {beam_size} live hypotheses by default, so it must "
            f"be at least {beam_size}"
        )
