"""Tests of evaluations, which decode with the search that serves and record their protocol. Perplexity in training,
validation and evaluation is compared with numpy's, computed from the probabilities.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.data.pairs import Example
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.evaluation.evaluating import (
    Evaluation,
    EvaluationConfig,
    decode_examples,
    evaluate,
    perplexity_statistics,
    score_references,
    search_options,
)
from attendant.training.evaluation.metrics import perplexity
from attendant.training.library.results import COLUMNS, outputs_file
from attendant.training.loop.experiment import prepare
from attendant.training.model import Seq2Seq
from attendant.training.recipe import load_recipe
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.text_models import LETTERS, fake_text_model
from tests.unit.training.conftest import Runs


def measure(examples: list[Example], num_resamples: int = 20, **config: object) -> Evaluation:
    model, chosen = fake_text_model(), EvaluationConfig.model_validate(config)
    options = search_options(chosen, model)
    decoded = decode_examples(model, examples, options)
    return evaluate(model, decoded, chosen, data_name="words.tsv", num_resamples=num_resamples)


def test_a_result_carries_its_protocol() -> None:
    examples = [Example("ab", ("c d", "e")), Example("cd", ("a",))]
    wer, per = measure(examples, metrics=["wer", "per"], beam_size=2).measurements
    assert (wer.metric, per.metric, wer.num_examples, wer.num_resamples) == ("wer", "per", 2, 20)
    assert wer.decoding == {"beam_size": 2, "length_penalty": 0.0, "max_length": 6}
    assert wer.protocol == (
        "words.tsv; % of examples whose output equals none of its references, 100 - exact_match; where an example is a "
        "word, as in pronunciation, that is the word error rate; "
        "beam 2, length penalty 0, at most 6 tokens"
    )
    assert wer.interval is not None and wer.to_json()["interval"] == {"low": 100.0, "high": 100.0}
    (greedy,) = measure(examples, metrics=["wer"], max_length=3, num_resamples=0).measurements
    assert greedy.protocol.endswith("greedy, at most 3 tokens") and greedy.interval is None
    assert "by_length" not in greedy.to_json()


def test_ignored_characters_are_left_out_of_both_sides() -> None:
    model, options = fake_text_model(), search_options(EvaluationConfig(), fake_text_model())
    (decoded,) = decode_examples(model, [Example("ab", ("AE0 B IY2",))], options)
    outputs = [replace(decoded, text="AE1 B IY2")]
    (stressed,), (plain,) = (
        evaluate(
            model, outputs, EvaluationConfig(metrics=("per",), ignored_characters=ignored), data_name="words.tsv"
        ).measurements
        for ignored in ("", "012")
    )
    assert stressed.value == pytest.approx(100 / 3, abs=1e-4) and "without" not in stressed.protocol
    assert plain.value == 0.0 and "; without the characters '012'; greedy" in plain.protocol


def test_the_decoded_text_is_scored() -> None:
    assert measure([Example("ab", ("?",))], metrics=["exact_match"]).measurements[0].value == 0.0
    ((hypothesis,),) = decode_all(
        FakeStepper(LETTERS.vocabulary_size),
        [[*LETTERS.encode("ab"), EOS_ID]],
        DecodingOptions(max_length=6),
        SPECIAL_IDS,
    )
    message = LETTERS.decode(hypothesis.token_ids)
    assert measure([Example("ab", ("?", message))], metrics=["exact_match"]).measurements[0].value == 100.0


def test_outputs_come_in_the_examples_order_with_scores_and_attention() -> None:
    model = fake_text_model()
    examples = [Example("ab", ("x",)), Example("a", ("y",)), Example("abcd", ("z",))]
    options = DecodingOptions(max_length=6, beam_size=2, length_penalty=1.0, attention=True)
    finished: list[int] = []
    decoded = decode_examples(model, examples, options, progress=finished.append)
    assert [each.example for each in decoded] == examples and sum(finished) == 3
    for each in decoded:
        (alone,) = decode_examples(model, [each.example], options)
        assert (each.text, each.log_prob, each.score) == (alone.text, alone.log_prob, alone.score)
        length = len(each.token_ids) + (each.finish_reason is FinishReason.EOS)
        assert each.score == pytest.approx(each.log_prob / ((5 + length) / 6))
        assert each.attention is not None and each.attention.shape == (length, len(each.source_ids))
        assert each.source_ids == (*LETTERS.encode(each.example.source), EOS_ID)


@pytest.mark.parametrize("append_eos", [True, False])
def test_a_source_that_leaves_no_token_is_not_decoded(append_eos: bool) -> None:
    # The word tokenizer returns no tokens for white space. A recipe's data has no such source, but another file may.
    words = train_tokenizer(TokenizerConfig(tokenizer="word"), ["a b"])
    model = fake_text_model(source_tokenizer=words, append_eos=append_eos)
    empty, full = decode_examples(model, [Example(" ", ("x",)), Example("a", ("x",))], DecodingOptions(max_length=6))
    assert (empty.text, empty.source_ids, empty.log_prob, empty.finish_reason) == ("", (), 0.0, None)
    assert full.source_ids and full.finish_reason is not None


def test_outputs_are_a_table_of_one_line_each(tmp_path) -> None:
    model, options = fake_text_model(), DecodingOptions(max_length=6, beam_size=2)
    decoded = decode_examples(model, [Example("a\tb", ("x", "y  z"))], options)
    with outputs_file(tmp_path / "outputs.tsv") as add_outputs:
        add_outputs("runs/mine", options, decoded)
        assert not (tmp_path / "outputs.tsv").exists()
    header, line = (tmp_path / "outputs.tsv").read_text().splitlines()
    assert tuple(header.split("\t")) == COLUMNS
    cells = dict(zip(COLUMNS, line.split("\t"), strict=True))
    assert (cells["model"], cells["beam_size"], cells["source"]) == ("runs/mine", "2", "a b")
    assert cells["references"] == "x ||| y z"
    assert float(cells["score"]) == pytest.approx(decoded[0].score, abs=1e-6)


# Targets are tokenized by characters: "a b c" has five tokens and EOS, or three words and EOS.
CHANGES = ("target.tokenizer=character", "model.dropout=0", "batches.max_tokens=100000", "training.max_steps=1")


def by_hand(model: Seq2Seq, run: Run, file: Path) -> tuple[float, float]:
    """Returns the perplexity per token and per word, computed pair by pair from the probability of each symbol."""
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


def test_perplexity_is_the_same_in_training_validation_and_evaluation(
    tiny_recipe: Path, tmp_path: Path, succeeds: Runs
) -> None:
    untrained = prepare(Run(tmp_path / "untrained"), load_recipe(tiny_recipe, CHANGES))
    at_first, _ = by_hand(untrained.model, untrained.run, tmp_path / "train.tsv")
    changes = [part for change in (*CHANGES, "training.log_every_steps=1") for part in ("--set", change)]
    succeeds(tiny_recipe, "--output", tmp_path / "run", *changes)
    step, validation = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["perplexity"] == pytest.approx(at_first, rel=1e-5)
    assert np.exp(step["loss"]) != pytest.approx(at_first, rel=1e-4), "the loss has label smoothing in it"

    run = Run(tmp_path / "run")
    expected = by_hand(load_run(run.path).model, run, tmp_path / "validation.tsv")
    assert (validation["perplexity"], validation["word_perplexity"]) == pytest.approx(expected, rel=1e-5)
    succeeds(
        "evaluate", run.path, "--split", "validation", "--metrics", "perplexity,word_perplexity", "--beam-sizes", "1,2"
    )
    result = [(entry["metric"], entry["value"]) for entry in run.evaluations() if "perplexity" in entry["metric"]]
    assert result == [(name, pytest.approx(value, rel=1e-4)) for name, value in zip(NAMES, expected, strict=True)]


NAMES = ("perplexity", "word_perplexity")


def test_all_references_count_and_sources_without_tokens_do_not() -> None:
    model = fake_text_model(append_eos=False)
    examples = [Example("ab", ("c d", "e")), Example("", ("a",)), Example("cd", ("a",))]
    scored = score_references(model, decode_examples(model, examples, DecodingOptions(max_length=2)))
    assert scored[1:].tolist() == [[6.0, 0.0, 2.0], [5.0, 0.0, 2.0]]
    log_probs = scored[0]
    assert log_probs[1] == 0 and (log_probs[[0, 2]] < 0).all()
    taken = perplexity_statistics("perplexity", scored)
    assert taken.value == pytest.approx(np.exp(-log_probs.sum() / 8))
    assert taken.values()[1] == 1.0


def test_perplexity_of_an_impossible_symbol_is_finite() -> None:
    assert perplexity(-1e9, 2) == np.exp(700.0)
