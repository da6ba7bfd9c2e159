"""Takes all measurements that a report shows of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase

from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import Floats
from attendant.training.assessment.runs import model_of_runs
from attendant.training.assessment.session import EvaluationData
from attendant.training.data.pairs import Example, sample_evenly
from attendant.training.evaluation.bootstrap import Difference, compare
from attendant.training.evaluation.decoding import Decoded, TextModel, decode_examples
from attendant.training.evaluation.evaluating import Evaluation, evaluate, search_options
from attendant.training.evaluation.lengths import LengthUnit, source_lengths
from attendant.training.evaluation.metrics import MetricName
from attendant.training.report.findings.curves import LearningCurves, read_curves
from attendant.training.report.findings.examples import Ranking, judge, rank
from attendant.training.report.findings.gradients import Gradients, measure_gradients
from attendant.training.report.findings.length_bins import natural_edges, natural_unit
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_run
from attendant.training.terminal import progress_bar

MAX_RUNS = len(ascii_uppercase)
NUM_GRADIENT_PAIRS = 64
NUM_WORST_MAPS = 3


@dataclass(frozen=True, slots=True)
class Attended:
    """An output with the attention [T, S] that made it, and the T and S tokens on both sides, EOS included."""

    decoded: Decoded
    weights: Floats
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run as a report shows it.

    Attributes:
        letter: what the pictures call it; empty where it is the only one.
        name: the directory's; the path as given where two runs share that.
        loaded: of its best checkpoint.
        evaluation: by source length too.
        differences: to the first run, metric by metric; empty for the first.
        rankings: the best and the worst outputs.
        chosen, worst: empty where the model has no attention.
        gradients: None where no example could be followed.
    """

    letter: str
    name: str
    loaded: LoadedRun
    curves: LearningCurves
    evaluation: Evaluation
    differences: tuple[Difference, ...]
    rankings: tuple[Ranking, ...]
    chosen: tuple[Attended, ...]
    worst: tuple[Attended, ...]
    gradients: Gradients | None

    @property
    def title(self) -> str:
        return f"{self.letter} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class _Opened:
    """A run that has decoded the data."""

    letter: str
    name: str
    loaded: LoadedRun
    model: TextModel
    options: DecodingOptions
    decoded: list[Decoded]


def measure_runs(
    paths: Sequence[Path],
    data: EvaluationData,
    chosen: Sequence[Example],
    *,
    length_unit: LengthUnit | None = None,
) -> list[MeasuredRun]:
    """Decodes and measures, each run by the search of its recipe, all by the metrics of the first.

    Args:
        paths: of runs, at most MAX_RUNS.
        chosen: examples whose attention is shown.
        length_unit: that sources are binned by; None: what suits them.

    Raises:
        UserError: a run without a checkpoint, or damaged.
    """
    loaded = [load_run(path) for path in paths]
    names = _names(paths)
    letters = ascii_uppercase[: len(paths)] if len(paths) > 1 else [""]
    opened = []
    with progress_bar() as progress:
        for place, run in enumerate(loaded):
            model = model_of_runs([run])
            options = search_options(run.recipe.evaluation, model)
            task = progress.add_task(f"decoding {names[place]}", total=len(data.examples))
            decoded = decode_examples(model, data.examples, options, progress=partial(progress.advance, task))
            opened.append(_Opened(letters[place], names[place], run, model, options, decoded))
    metrics = loaded[0].recipe.evaluation.metrics
    unit = length_unit or natural_unit([example.source for example in data.examples])
    lengths = [length for one in opened for length in source_lengths(one.model, one.decoded, unit)]
    edges = natural_edges(lengths)
    evaluations = [
        evaluate(
            one.model,
            one.decoded,
            one.options,
            metrics,
            data_name=data.name,
            bleu_tokenizer=loaded[0].recipe.evaluation.bleu_tokenizer,
            length_edges=edges,
            length_unit=unit,
        )
        for one in opened
    ]
    baselines = [None, *evaluations[:1] * (len(paths) - 1)]
    return [
        _measure(one, evaluation, baseline, data.examples, chosen)
        for one, evaluation, baseline in zip(opened, evaluations, baselines, strict=True)
    ]


def _measure(
    opened: _Opened,
    evaluation: Evaluation,
    baseline: Evaluation | None,
    examples: Sequence[Example],
    chosen: Sequence[Example],
) -> MeasuredRun:
    metric: MetricName = evaluation.measurements[0].metric
    rankings = rank(judge(opened.decoded, metric))
    has_attention = opened.loaded.recipe.model.has_attention
    worst = [one.decoded.example for one in rankings[0].entries[:NUM_WORST_MAPS]] if rankings else []
    pairs = () if baseline is None else zip(evaluation.statistics, baseline.statistics, strict=True)
    return MeasuredRun(
        letter=opened.letter,
        name=opened.name,
        loaded=opened.loaded,
        curves=read_curves(Run(opened.loaded.path)),
        evaluation=evaluation,
        differences=tuple(compare(one, other) for one, other in pairs),
        rankings=rankings,
        chosen=_attend(opened, chosen) if has_attention else (),
        worst=_attend(opened, worst) if has_attention else (),
        gradients=_gradients(opened, examples),
    )


def _attend(opened: _Opened, examples: Sequence[Example]) -> tuple[Attended, ...]:
    found = decode_examples(opened.model, examples, replace(opened.options, attention=True))
    end = opened.model.target_tokenizer.tokens_of([opened.model.special_ids.eos])
    return tuple(
        Attended(
            one,
            one.attention,
            opened.model.source_tokenizer.tokens_of(one.source_ids),
            opened.model.target_tokenizer.tokens_of(one.token_ids) + end * (one.finish_reason is FinishReason.EOS),
        )
        for one in found
        if one.attention is not None
    )


def _gradients(opened: _Opened, examples: Sequence[Example]) -> Gradients | None:
    """Of examples that training could have seen: neither empty nor beyond the recipe's lengths."""
    model, data = opened.model, opened.loaded.recipe.data
    sampled = sample_evenly(examples, NUM_GRADIENT_PAIRS)
    sources = model.source_ids([one.source for one in sampled])
    targets = model.target_tokenizer.encode_batch([one.references[0] for one in sampled])
    fitting = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if 0 < len(source) - model.append_eos <= data.max_source_tokens and 0 < len(target) <= data.max_target_tokens
    ]
    return measure_gradients(opened.loaded.model, *zip(*fitting, strict=True)) if fitting else None


def _names(paths: Sequence[Path]) -> list[str]:
    short = [path.resolve().name for path in paths]
    return [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
