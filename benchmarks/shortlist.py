"""What lists of target symbols are worth: a step's CPU time with and without, and how many words they cover.

    python -m benchmarks.shortlist TRAIN.tsv TEST.tsv [--vocabulary-size 8000,32000] [--size 256,512,1024]

The pairs (source, tab, target) give vocabularies, lexicon and lists; the model has the sizes of the other benchmarks
and random weights, since what a step takes does not depend on them.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from benchmarks.mt import mt_exportable
from benchmarks.training.workload import Workload
from export.from_model import ExportableModel
from export.graph_files import write_pair, write_shortlist
from export.int8.quantization import quantize
from export.shortlist.tables import make_shortlist
from export.traced import TracedPair
from runtime.bundle import Bundle
from runtime.graph_io import SHORTLIST_IDS
from runtime.manifest import Manifest
from runtime.onnx_stepper import OnnxStepper
from runtime.shortlist import Shortlist, ShortlistLayout
from runtime.stepper import DecoderState
from runtime.tokenizer import EOS_ID, SPECIAL_TOKENS, UNK_ID
from training.data.corpus import Corpus, TokenSequences

MAX_PAIRS: Final = 20_000
NUM_ROWS: Final = (1, 16, 64)
NUM_BATCHES: Final = 8
WARM_UP_STEPS: Final = 3
NUM_STEPS: Final = 12
UNION_SOURCES: Final = 64

Sentences = list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shortlist", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--vocabulary-size", type=_numbers, default=(8000, 32000))
    parser.add_argument("--size", type=_numbers, default=(256, 512, 1024), help="of a list")
    options = parser.parse_args()
    for vocabulary_size in options.vocabulary_size:
        measure(_pairs(options.train)[:MAX_PAIRS], _pairs(options.test), vocabulary_size, options.size)


def measure(
    train: Sequence[Sequence[str]], test: Sequence[Sequence[str]], vocabulary_size: int, sizes: Sequence[int]
) -> None:
    """Prints a line for every size of lists."""
    tokenizer = _train_tokenizer((text for pair in train for text in pair), vocabulary_size)

    def encoded(pairs: Sequence[Sequence[str]], side: int) -> Sentences:
        return [one.ids for one in tokenizer.encode_batch([pair[side] for pair in pairs])]

    corpus = Corpus(TokenSequences.of(encoded(train, 0)), TokenSequences.of(encoded(train, 1)), 0)
    references = encoded(test, 1)
    sources = [[*source[:79], EOS_ID] for source in encoded(test, 0)]
    size_of_all = tokenizer.get_vocab_size()
    exportable = mt_exportable(replace(Workload(), vocabulary_size=size_of_all))
    plain = exportable.graphs()
    with tempfile.TemporaryDirectory() as folder:
        full = _stepper(Path(folder) / "full", exportable, plain, None)
        for size in sizes:
            shortlist = make_shortlist(corpus, size_of_all, size_of_all, size)
            lists = shortlist.lists(sources)
            covered = np.concatenate([np.isin(one, own) for one, own in zip(references, lists, strict=True)])
            listed = _stepper(Path(folder) / str(size), exportable, plain, shortlist)
            steps = [_step_seconds(full, listed, sources, num_rows) for num_rows in NUM_ROWS]
            shown = ", ".join(
                f"{num_rows} rows {1e6 * whole:.0f} -> {1e6 * part:.0f} us ({whole / part:.2f} x, union {union:.0f})"
                for num_rows, (whole, part, union) in zip(NUM_ROWS, steps, strict=True)
            )
            for_list, for_union = _making_seconds(shortlist, sources[:200])
            print(
                f"vocabulary {size_of_all}, lists of {size}: {100 * covered.mean():.2f} % of the references' symbols; "
                f"{shown}; a list {1e6 * for_list:.0f} us, a union of {UNION_SOURCES} {1e6 * for_union:.0f} us",
                flush=True,
            )


def _step_seconds(
    full: OnnxStepper, listed: OnnxStepper, sources: Sentences, num_rows: int
) -> tuple[float, float, float]:
    """CPU seconds of a step over the whole vocabulary and over lists, in turns; and the mean size of the union."""
    random = np.random.default_rng(0)
    steppers = full, listed
    taken: tuple[list[float], list[float]] = ([], [])
    unions = []
    for _ in range(NUM_BATCHES):
        chosen = [sources[index] for index in random.choice(len(sources), num_rows, replace=False)]
        states = [stepper.encode(chosen) for stepper in steppers]
        unions.append(len(np.unique(states[1].source_tensors[SHORTLIST_IDS])))
        for number in range(WARM_UP_STEPS + NUM_STEPS):
            for place, stepper in enumerate(steppers):
                began = time.process_time()
                states[place] = _step(stepper, states[place])
                if number >= WARM_UP_STEPS:
                    taken[place].append(time.process_time() - began)
    return median(taken[0]), median(taken[1]), float(np.mean(unions))


def _step(stepper: OnnxStepper, state: DecoderState) -> DecoderState:
    previous = np.full(state.num_rows, len(SPECIAL_TOKENS), np.int64)
    return stepper.step(state, previous, num_candidates=1)[1]


def _making_seconds(shortlist: Shortlist, sources: Sentences) -> tuple[float, float]:
    """CPU seconds for the list of a source, and for the union of 64 lists."""
    began = time.process_time()
    lists = shortlist.lists(sources)
    for_list = (time.process_time() - began) / len(sources)
    layout, rows = ShortlistLayout(shortlist.vocabulary_size), np.arange(UNION_SOURCES)
    seconds = []
    for first in range(len(lists) - UNION_SOURCES):
        began = time.process_time()
        layout.inputs(lists[first : first + UNION_SOURCES], rows, None, None)
        seconds.append(time.process_time() - began)
    return for_list, median(seconds)


def _stepper(folder: Path, exportable: ExportableModel, plain: TracedPair, shortlist: Shortlist | None) -> OnnxStepper:
    """Of the int8 graphs, uncertified: models are certified elsewhere, here steps are timed."""
    folder.mkdir()
    spec = None if shortlist is None else write_shortlist(folder, shortlist)
    graphs = write_pair(folder, "int8", quantize(plain, None if spec is None else spec.size).graphs, spec)
    manifest = Manifest(
        name=exportable.name,
        model={},
        source=exportable.source_side,
        target=exportable.target_side,
        special_ids=exportable.special_ids,
        graphs={"int8": graphs},
        default_precision={},
        limits=exportable.limits,
        decoding=exportable.decoding,
        provenance=exportable.provenance,
        evaluation=(),
        certificates=(),
        files={},
    )
    tokenizers = exportable.source_tokenizer, exportable.target_tokenizer
    bundle = Bundle(
        path=folder, manifest=manifest, source_tokenizer=tokenizers[0], target_tokenizer=tokenizers[1], golden=()
    )
    return OnnxStepper(bundle, "int8", num_threads=1)


def _train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> LibraryTokenizer:
    tokenizer = LibraryTokenizer(models.BPE(unk_token=SPECIAL_TOKENS[UNK_ID]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _pairs(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t")[:2] for line in file]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
