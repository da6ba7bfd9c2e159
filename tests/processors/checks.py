"""The checks of one processor: bundles decode on it as on the processor that certified them.

Emulated processors run this program (tests/processors/emulation.py). It needs only the server's packages, neither
pytest nor torch.

    python -m tests.processors.checks BUNDLE... [--write FILE | --compare FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from attendant.runtime.bundle.bundle import Bundle, GoldenExample, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.bundle_stepper import UNSERVED, check_decoding, open_stepper, options_of, score_tolerance
from attendant.runtime.decoding.batch import decode_all, score_all
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import Stepper

NUM_EXAMPLES: Final = 8
"""Maximum number of examples per way to decode that are decoded alone and scored: emulation is slow."""

MAX_OF_INT8: Final = 0.05
MAX_MEDIAN: Final = 1e-4
"""Largest differences of a token's log-probability between processors in int8, and of half of all tokens'.

The products are the same integers, but floating-point sums are in another order, so that a few activations, which are
halfway between two codes, get the other one. Between an emulated Nehalem and AMX, the largest of 737 differences of the
shipped models was 0.024, and half of them were below 2e-6.
"""


@dataclass(frozen=True)
class ScoredTarget:
    """A golden example's target as a host scores it: the log-probability of each token."""

    target_tokens: list[str]
    token_log_probs: list[float]


ScoredTargets = dict[str, list[ScoredTarget]]
"""Scored targets by "<bundle> <precision>"."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line per bundle and precision, and a line per problem; returns 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write this host's scores")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with scores that another host wrote")
    options = parser.parse_args(arguments)
    scores = read_scores(options.compare) if options.compare else {}
    written: ScoredTargets = {}
    num_problems = 0
    for path in options.bundles:
        bundle = open_bundle(path)
        for precision in bundle.manifest.graphs:
            if (precision, "cpu") in UNSERVED:
                continue
            name, start = f"{bundle.manifest.name} {precision}", time.monotonic()
            try:
                checked = CheckedGraphs(bundle, precision)
                written[name] = checked.scored()
                problems = list(checked.problems(written[name], scores.get(name)))
            except UserError as error:
                problems = [str(error)]
            num_problems += len(problems)
            print(f"{name}: {'FAILED' if problems else 'ok'}, {time.monotonic() - start:.1f} s", flush=True)
            for problem in problems:
                print(f"  {name}: {problem}", flush=True)
    if options.write:
        content = {name: [asdict(target) for target in targets] for name, targets in written.items()}
        options.write.write_text(json.dumps(content), encoding="utf-8")
    return 1 if num_problems else 0


class CheckedGraphs:
    """The graphs of a precision, on this processor.

    Attributes:
        examples: up to `NUM_EXAMPLES` golden examples of each way to decode.

    Raises:
        UserError: they are not served on this processor.
    """

    def __init__(self, bundle: Bundle, precision: Precision) -> None:
        self.bundle = bundle
        self.precision: Precision = precision
        self.stepper: Stepper = open_stepper(bundle, precision, num_threads=1)
        self.examples: list[GoldenExample] = []
        golden = [example for example in bundle.golden if example.precision == precision]
        for way in dict.fromkeys(options_of(example) for example in golden):
            self.examples += [example for example in golden if options_of(example) == way][:NUM_EXAMPLES]

    def problems(self, scored: list[ScoredTarget], expected: list[ScoredTarget] | None) -> Iterator[str]:
        """Yields a line per problem.

        Args:
            expected: the scores of another host. If None, they are not compared.
        """
        yield from check_decoding(self.bundle, self.stepper, self.precision, "cpu")
        yield from self._dependent_on_batch_mates()
        if expected is not None:
            is_int8 = self.precision == "int8"
            tolerance = MAX_OF_INT8 if is_int8 else score_tolerance(self.bundle, self.precision, "cpu")
            yield from differences(scored, expected, tolerance)

    def scored(self) -> list[ScoredTarget]:
        """Scores the examples' targets with teacher forcing."""
        pairs = [
            (self._source_ids(example), self.bundle.target_tokenizer.ids_of(example.target_tokens))
            for example in self.examples
            if example.target_tokens
        ]
        hypotheses = score_all(self.stepper, pairs, self.bundle.manifest.special_ids)
        return [
            ScoredTarget(self.bundle.target_tokenizer.tokens_of(hypothesis.token_ids), list(hypothesis.token_log_probs))
            for hypothesis in hypotheses
        ]

    def _dependent_on_batch_mates(self) -> Iterator[str]:
        """Yields a line per example whose tokens or scores differ in any bit when it is decoded alone or in a batch."""
        together = self._decode(self.examples)
        for example, in_batch in zip(self.examples, together, strict=True):
            (alone,) = self._decode([example])
            if _bits(alone) != _bits(in_batch):
                yield f"{' '.join(example.source_tokens)}: alone and in a batch differ"

    def _decode(self, examples: Sequence[GoldenExample]) -> list[tuple[Hypothesis, ...]]:
        sources = [self._source_ids(example) for example in examples]
        ways = [options_of(example) for example in examples]
        return decode_all(self.stepper, sources, ways, self.bundle.manifest.special_ids)

    def _source_ids(self, example: GoldenExample) -> list[int]:
        return self.bundle.source_ids(self.bundle.source_tokenizer.ids_of(example.source_tokens))


def _bits(hypotheses: Iterable[Hypothesis]) -> list[tuple[tuple[int, ...], tuple[float, ...], float]]:
    return [(each.token_ids, each.token_log_probs, each.score) for each in hypotheses]


def differences(scored: Sequence[ScoredTarget], expected: Sequence[ScoredTarget], tolerance: float) -> Iterator[str]:
    """Yields a line for each target with a token whose log-probability differs by more than the tolerance, and one if
    half of all tokens differ by more than MAX_MEDIAN.
    """
    every: list[float] = []
    for own, other in zip(scored, expected, strict=True):
        pairs = list(zip(own.token_log_probs, other.token_log_probs, strict=True))
        relative = [abs(value - reference) / max(1.0, abs(reference)) for value, reference in pairs]
        every += relative
        # Written so that NaN fails.
        if own.target_tokens != other.target_tokens or not all(value <= tolerance for value in relative):
            largest = max(relative, default=float("nan"))
            yield f"{' '.join(own.target_tokens)}: scores differ by {largest:.2g}, may by {tolerance:g}"
    if every and not median(every) <= MAX_MEDIAN:
        yield f"half of the tokens' scores differ by {median(every):.2g} or more, may by {MAX_MEDIAN:g}"


def read_scores(path: Path) -> ScoredTargets:
    """Reads the scores that `--write` has written."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {name: [ScoredTarget(**target) for target in targets] for name, targets in content.items()}


if __name__ == "__main__":
    sys.exit(main())
