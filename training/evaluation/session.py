"""Several models on one test set: how a bundle is opened, how a model is measured, and how results are written.

A bundle is evaluated without PyTorch, with the loader and the graphs that serve; training/run/loading.py opens runs.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, get_args

from rich.progress import Progress

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, SEARCH_OPTIONS, Manifest, Precision, Provider, search_of
from attendant.runtime.bundle_stepper import default_precision
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.files import new_file
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.data.config import CorpusFiles
from attendant.training.data.pairs import (
    MOST_CHARACTERS,
    Example,
    Pair,
    group_references,
    is_measurable,
    no_pairs,
    read_pairs,
)
from attendant.training.evaluation.bootstrap import Difference, compare
from attendant.training.evaluation.evaluating import (
    Decoded,
    Evaluation,
    EvaluationConfig,
    TextModel,
    decode_examples,
    describe_search,
    evaluate,
    search_options,
)
from attendant.training.evaluation.metrics import MetricName, refuse_missing

RECIPE_NAME: Final = "recipe.toml"
"""What every run directory has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A run or a bundle, ready to decode.

    Attributes:
        config: what is measured, and how, unless the user says otherwise.
        variant: what else a protocol has to say, e.g. "int8 on cpu" or "last checkpoint"; may be empty.
        max_beam_size: the widest beam; None: no limit.
    """

    path: Path
    model: TextModel
    config: EvaluationConfig
    variant: str
    max_beam_size: int | None

    @property
    def name(self) -> str:
        """What it is called where several are compared."""
        return ", ".join(filter(None, (str(self.path), self.variant)))


def is_bundle(path: Path) -> bool:
    """Whether the directory is a bundle, and not a run. Raises UserError where it is neither."""
    if (path / MANIFEST_NAME).is_file():
        return True
    if not (path / RECIPE_NAME).is_file():
        what = "is neither a run (no recipe.toml) nor a bundle (no manifest.json)" if path.exists() else "is not there"
        raise UserError(f"{path} {what}: give the directory that training or export has written")
    return False


def open_bundle_model(path: Path, precision: Precision | None = None, provider: Provider = "cpu") -> OpenedModel:
    """Opens a bundle as the server would.

    Args:
        precision: None: the manifest's default on that provider.

    Raises:
        UserError: a bundle that is refused, a precision that it lacks, a provider that this host lacks.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    precision = precision or default_precision(bundle, provider)
    model = TextModel(
        stepper=OnnxStepper(bundle, precision, provider),
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        special_ids=manifest.special_ids,
        append_eos=manifest.source.append_eos,
        max_length=manifest.decoding.max_length or manifest.limits.max_target_tokens,
    )
    return OpenedModel(
        path=path,
        model=model,
        config=_config_of(manifest),
        variant=f"{precision} on {provider}",
        max_beam_size=manifest.limits.max_beam_size,
    )


def _config_of(manifest: Manifest) -> EvaluationConfig:
    """The metrics that the manifest was measured by, and the search that it serves by."""
    measured = {entry.metric for entry in manifest.evaluation}
    metrics = tuple(metric for metric in get_args(MetricName) if metric in measured)
    return EvaluationConfig.model_validate(search_of(manifest.decoding) | ({"metrics": metrics} if metrics else {}))


COLUMNS = ("model", *SEARCH_OPTIONS, "source", "output", "references", "score", "log_prob")
REFERENCE_SEPARATOR = " ||| "


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One evaluation of one model.

    Attributes:
        model: what it is called, e.g. "bundles/mine, int8 on cpu".
        decode_seconds: wall time of tokenizing and decoding; loading and scoring are not in it.
        differences: to the first model by the same search, or where there is only one model, to its first search;
            metric by metric; empty for what the others are compared with.
    """

    model: str
    evaluation: Evaluation
    decode_seconds: float
    differences: tuple[Difference, ...] = ()

    @property
    def examples_per_second(self) -> float:
        return self.evaluation.num_examples / self.decode_seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "decode_seconds": round(self.decode_seconds, 4),
            "examples_per_second": round(self.examples_per_second, 2),
            "measurements": [measurement.to_json() for measurement in self.evaluation.measurements],
            "differences": [asdict(difference) for difference in self.differences],
        }


def document(results: Sequence[Result], data_name: str) -> dict[str, Any]:
    """The document that --output writes and --json prints."""
    return {"data": data_name, "results": [result.to_json() for result in results]}


class OutputsFile:
    """A tab-separated table with a header and a line per example, the examples of each decoding in the order of their
    scores: those that the model is least sure of come first.

    Several references are joined by " ||| "; white space inside a text is written as one space.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._write(COLUMNS)

    def add(self, model: str, options: DecodingOptions, decoded: Sequence[Decoded]) -> None:
        """Writes a line per output."""
        for one in sorted(decoded, key=lambda output: output.score):
            cells = (
                model,
                *("" if (value := getattr(options, name)) is None else f"{value:g}" for name in SEARCH_OPTIONS),
                _cell(one.example.source),
                _cell(one.text),
                REFERENCE_SEPARATOR.join(map(_cell, one.example.references)),
                f"{one.score:.6f}",
                f"{one.log_prob:.6f}",
            )
            self._write(cells)

    def _write(self, cells: Sequence[str]) -> None:
        self._file.write("\t".join(cells) + "\n")


@contextmanager
def outputs_file(path: Path) -> Iterator[OutputsFile]:
    """Opens `path` for the outputs; it is there when all of them are, and not before. Raises CantWrite."""
    with new_file(path) as file:
        yield OutputsFile(file)


def _cell(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """Examples, and what a protocol calls them."""

    name: str
    examples: list[Example]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The data and the settings that all evaluated models share.

    Attributes:
        num_resamples: of the bootstrap; 0: no intervals.
        progress: has a bar while something is decoded.
        outputs: takes every output; may be None.
        rescorer: ranks the hypotheses of every beam anew; may be None.
    """

    data: EvaluationData
    num_resamples: int
    progress: Progress
    outputs: OutputsFile | None
    rescorer: TextModel | None = None

    def evaluate(self, opened: OpenedModel, config: EvaluationConfig, baseline: Result | None) -> Result:
        """Decodes the data once and takes its metrics: those of `config`, or with a baseline those of the baseline.

        Raises:
            UserError: a metric's library is not installed.
        """
        refuse_missing(config.metrics, config.bleu_tokenizer)
        options = search_options(config, opened.model)
        examples = self.data.examples
        task = self.progress.add_task(f"{opened.name}: {describe_search(options)}", total=len(examples))
        began = time.perf_counter()
        decoded = decode_examples(
            opened.model,
            examples,
            options,
            rescorer=self.rescorer,
            progress=lambda count: self.progress.advance(task, count),
        )
        seconds = time.perf_counter() - began
        self.progress.remove_task(task)
        if self.outputs is not None:
            self.outputs.add(opened.name, options, decoded)
        theirs = () if baseline is None else baseline.evaluation.statistics
        evaluation = evaluate(
            opened.model,
            decoded,
            options,
            config.metrics if baseline is None else tuple(statistics.metric for statistics in theirs),
            data_name=", ".join(filter(None, (self.data.name, opened.variant))),
            bleu_tokenizer=config.bleu_tokenizer if baseline is None else baseline.evaluation.bleu_tokenizer,
            num_resamples=self.num_resamples,
            length_edges=config.length_edges,
            length_unit=config.length_unit,
        )
        ours = () if baseline is None else evaluation.statistics
        return Result(
            model=opened.name,
            evaluation=evaluation,
            decode_seconds=seconds,
            differences=tuple(compare(*pair, self.num_resamples) for pair in zip(ours, theirs, strict=True)),
        )


def read_data(files: CorpusFiles, left_out: frozenset[str] = frozenset()) -> EvaluationData:
    """The examples of files, one per source, with all its targets as references.

    Args:
        left_out: sources that are not measured; the name says how many.

    Raises:
        UserError: bad or no data.
    """
    num_huge = 0

    def measurable() -> Iterator[Pair]:
        nonlocal num_huge
        for pair in read_pairs(files):
            if not is_measurable(pair):
                num_huge += 1
            elif pair.source not in left_out:
                yield pair

    examples = group_references(measurable())
    if not examples:
        raise no_pairs(files)
    without = f", without {len(left_out)} sources that the training split has too" if left_out else ""
    if num_huge:
        without += f", without {num_huge} pairs with a text of more than {MOST_CHARACTERS:,} characters"
    return EvaluationData(f"{files}{without}", examples)
