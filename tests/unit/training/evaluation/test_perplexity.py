"""Perplexity, in training, validation and evaluation, against numpy on the probabilities themselves."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.data.pairs import Example
from attendant.training.evaluation.evaluating import decode_examples, perplexity_statistics, score_references
from attendant.training.evaluation.metrics import perplexity
from attendant.training.loop.experiment import prepare
from attendant.training.model import Seq2Seq
from attendant.training.recipe import load_recipe
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.unit.training.evaluation.test_evaluating import text_model

Command = Callable[..., tuple[int, str, str]]

# Targets of characters: "a b c" is five tokens and an end, three words and an end.
CHANGES = ("target.tokenizer=character", "model.dropout=0", "batches.max_tokens=100000", "training.max_steps=1")


def by_hand(model: Seq2Seq, run: Run, file: Path) -> tuple[float, float]:
    """Per token and per word: each pair alone, and each symbol's probability from its logits."""
    sources, targets = run.tokenizers()
    losses, num_tokens, num_words = 0.0, 0, 0
    for line in file.read_text().splitlines():
        source, target = line.split("\t")
        source_ids, target_ids = [*sources.encode(source), EOS_ID], [*targets.encode(target), EOS_ID]
        with torch.no_grad():
            logits = model.eval()(
                torch.tensor([source_ids]),
                torch.tensor([len(source_ids)]),
                torch.tensor([[model.start_id, *target_ids[:-1]]]),
                torch.arange(len(target_ids)),
            ).numpy()
        shares = np.exp(logits.astype(np.float64))
        losses -= np.log(shares[range(len(target_ids)), target_ids] / shares.sum(1)).sum()
        num_tokens, num_words = num_tokens + len(target_ids), num_words + len(target.split(" ")) + 1
    return np.exp(losses / num_tokens), np.exp(losses / num_words)


def test_training_validation_and_evaluation_mean_the_same(tiny_recipe: Path, tmp_path: Path, command: Command) -> None:
    untrained = prepare(Run(tmp_path / "untrained"), load_recipe(tiny_recipe, CHANGES))
    at_first, _ = by_hand(untrained.model, untrained.run, tmp_path / "train.tsv")
    changes = [part for change in (*CHANGES, "training.log_every_steps=1") for part in ("--set", change)]
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "run", *changes)
    assert status == 0, errors
    step, validation = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["perplexity"] == pytest.approx(at_first, rel=1e-5)
    assert np.exp(step["loss"]) != pytest.approx(at_first, rel=1e-4), "the loss has label smoothing in it"

    run = Run(tmp_path / "run")
    expected = by_hand(load_run(run.path).model, run, tmp_path / "validation.tsv")
    assert (validation["perplexity"], validation["word_perplexity"]) == pytest.approx(expected, rel=1e-5)
    status, _, errors = command(
        "evaluate", run.path, "--split", "validation", "--metrics", "perplexity,word_perplexity", "--beam-sizes", "1,2"
    )
    assert status == 0, errors
    found = [(entry["metric"], entry["value"]) for entry in run.evaluations() if "perplexity" in entry["metric"]]
    assert found == [(name, pytest.approx(value, rel=1e-4)) for name, value in zip(NAMES, expected, strict=True)]


NAMES = ("perplexity", "word_perplexity")


def test_all_references_count_and_sources_without_tokens_do_not() -> None:
    model = text_model(append_eos=False)
    examples = [Example("ab", ("c d", "e")), Example("", ("a",)), Example("cd", ("a",))]
    scored = score_references(model, decode_examples(model, examples, DecodingOptions(max_length=2)))
    assert scored.counts["perplexity"].tolist() == [6.0, 0.0, 2.0]
    assert scored.counts["word_perplexity"].tolist() == [5.0, 0.0, 2.0]
    assert scored.log_probs[1] == 0 and (scored.log_probs[[0, 2]] < 0).all()
    taken = perplexity_statistics("perplexity", scored)
    assert taken.value == pytest.approx(np.exp(-scored.log_probs.sum() / 8))
    assert taken.values()[1] == 1.0


def test_an_impossible_symbol_leaves_a_number() -> None:
    assert perplexity(-1e9, 2) == np.exp(700.0)
