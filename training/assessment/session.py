"""One test set, on which any number of models are measured, and where it is read."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.progress import Progress

from attendant.training.assessment.models import OpenedModel
from attendant.training.assessment.results import OutputsFile, Result
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
from attendant.training.evaluation.bootstrap import compare
from attendant.training.evaluation.decoding import TextModel, decode_examples
from attendant.training.evaluation.evaluating import EvaluationConfig, describe_search, evaluate, search_options
from attendant.training.evaluation.metrics import refuse_missing


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
