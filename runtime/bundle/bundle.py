"""Opens a bundle: everything that can be checked without running it is checked here, and every difference is told.

What needs the sessions (their real inputs and outputs) is checked by runtime/onnx/stepper.py, what needs this host's
arithmetic by runtime/bundle/golden.py.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from attendant.runtime.bundle.golden import GoldenExample, parse_golden
from attendant.runtime.bundle.graph_io import contract_differences
from attendant.runtime.bundle.manifest import FORMAT_VERSION, MANIFEST_NAME, GraphPair, Manifest, Precision
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of

SOURCE_TOKENIZER_NAME = "source_tokenizer.json"
TARGET_TOKENIZER_NAME = "target_tokenizer.json"
GOLDEN_NAME = "golden.jsonl"

WORDS_REMEMBERED = 1000
"""By a tokenizer of a bundle, whose texts come from anywhere: 8 MiB at most."""


class BundleRefused(UserError):
    """A bundle that is not what its manifest says; one line for each thing that differs."""

    def __init__(self, path: Path, differences: Sequence[str]) -> None:
        super().__init__(f"the bundle {path} is refused; export it anew, or copy it again:", differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle, whose files are those that its manifest lists."""

    path: Path
    manifest: Manifest
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    golden: tuple[GoldenExample, ...]

    def graphs_in(self, precision: Precision) -> GraphPair:
        """Raises UserError where the bundle has no such precision."""
        graphs = self.manifest.graphs
        if precision not in graphs:
            choices = ", ".join(sorted(graphs))
            raise UserError(f"precision {precision} is not in the bundle {self.manifest.name}; it has {choices}")
        return graphs[precision]

    def source_ids(self, token_ids: Sequence[int]) -> list[int]:
        """What the encoder is given for a source's tokens: EOS at the end where the model was trained so."""
        return [*token_ids, self.manifest.special_ids.eos] if self.manifest.source.append_eos else list(token_ids)


def open_bundle(path: Path | str) -> Bundle:
    """Opens the bundle in the folder `path`, whatever the folder's name.

    Raises:
        BundleRefused: with one line for every file, digest, size or id that differs from the manifest.
    """
    path = Path(path)
    manifest = read_manifest(path)
    differences = [*_file_differences(path, manifest), *_manifest_differences(manifest)]
    if differences:
        raise BundleRefused(path, differences)
    # From here on the files are the exported ones, byte for byte: what does not parse was exported wrong.
    try:
        source_tokenizer = Tokenizer.from_file(path / SOURCE_TOKENIZER_NAME)
        target_tokenizer = Tokenizer.from_file(path / TARGET_TOKENIZER_NAME)
        golden = parse_golden((path / GOLDEN_NAME).read_text(encoding="utf-8"))
    except (ValueError, UserError) as error:
        raise BundleRefused(path, [str(error)]) from error
    for tokenizer in (source_tokenizer, target_tokenizer):
        tokenizer.bound_cache(WORDS_REMEMBERED)
    bundle = Bundle(
        path=path,
        manifest=manifest,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        golden=golden,
    )
    if differences := [*_vocabulary_differences(bundle)]:
        raise BundleRefused(path, differences)
    return bundle


def read_manifest(path: Path) -> Manifest:
    """Reads and checks `manifest.json` alone.

    Raises:
        BundleRefused: no manifest, another format, a field that is missing, unknown or bad, or a wrong digest.
    """

    def refuse(*lines: str) -> NoReturn:
        raise BundleRefused(path, lines)

    if not path.is_dir():
        refuse("no such folder")
    try:
        content: Any = json.loads((path / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        refuse(f"{MANIFEST_NAME} is missing: this is no bundle")
    except (OSError, ValueError) as error:
        refuse(f"{MANIFEST_NAME} can't be read: {error}")
    if not isinstance(content, dict):
        refuse(f"{MANIFEST_NAME} is no JSON object")
    if content.get("format_version") != FORMAT_VERSION:
        refuse(f"format_version is {content.get('format_version')!r}, this version of Attendant reads {FORMAT_VERSION}")
    try:
        manifest = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        refuse(*(f"{MANIFEST_NAME}: {_dotted(one['loc'])}: {one['msg']}" for one in error.errors()))
    if manifest.digest != manifest.computed_digest():
        refuse(f"{MANIFEST_NAME}: digest is {manifest.digest!r}, its content gives {manifest.computed_digest()!r}")
    return manifest


def _dotted(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location)


def _file_differences(path: Path, manifest: Manifest) -> Iterator[str]:
    present = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()} - {MANIFEST_NAME}
    for name in sorted(present - manifest.files.keys()):
        yield f"{name}: not listed in {MANIFEST_NAME}; remove it"
    for name, entry in sorted(manifest.files.items()):
        if name not in present:
            yield f"{name}: missing"
        elif (size := (path / name).stat().st_size) != entry.size:
            yield f"{name}: {size} bytes, the manifest says {entry.size}"
        elif (digest := sha256_of(path / name)) != entry.sha256:
            yield f"{name}: sha256 is {digest}, the manifest says {entry.sha256}"


def _manifest_differences(manifest: Manifest) -> Iterator[str]:
    """What the manifest says in two places, or leaves out."""
    for name in (SOURCE_TOKENIZER_NAME, TARGET_TOKENIZER_NAME, GOLDEN_NAME):
        if name not in manifest.files:
            yield f"{name}: not listed in {MANIFEST_NAME}"
    if "fp32" not in manifest.graphs:
        yield "graphs: fp32 is missing"
    certified = {certificate.precision for certificate in manifest.certificates}
    for precision, pair in manifest.graphs.items():
        if precision not in certified:
            yield f"certificates: none for {precision}: these graphs were never verified"
        for graph in (pair.encoder, pair.decoder_step):
            entry = manifest.files.get(graph.file)
            if entry is None:
                yield f"{graph.file}: not listed in {MANIFEST_NAME}"
            elif entry.sha256 != graph.sha256:
                yield f"{graph.file}: sha256 stands as {graph.sha256} in graphs and {entry.sha256} in files"
        yield from contract_differences(pair)
    for provider, precision in manifest.default_precision.items():
        if precision not in manifest.graphs:
            yield f"default_precision.{provider}: {precision} is not among the graphs"


def _vocabulary_differences(bundle: Bundle) -> Iterator[str]:
    manifest = bundle.manifest
    for name, tokenizer, size in (
        (SOURCE_TOKENIZER_NAME, bundle.source_tokenizer, manifest.source.vocabulary_size),
        (TARGET_TOKENIZER_NAME, bundle.target_tokenizer, manifest.target.vocabulary_size),
    ):
        if tokenizer.vocabulary_size != size:
            yield f"{name}: {tokenizer.vocabulary_size} symbols, the manifest says {size}"
    ids = manifest.special_ids
    for name, given, expected in (
        ("pad", ids.pad, PAD_ID),
        ("unk", ids.unk, UNK_ID),
        ("bos", ids.bos, BOS_ID),
        ("eos", ids.eos, EOS_ID),
    ):
        if given != expected:
            yield f"special_ids.{name}: {given}, the tokenizers say {expected}"
    if not 0 <= ids.start < manifest.target.vocabulary_size:
        yield f"special_ids.start: {ids.start} is not in the target vocabulary"
