"""Tests of a step's candidates, of ensembles, whose probabilities are the mean of their members', and of a stepper.

tests/parity compares a stepper's selected rows with those of the exported graphs.
"""

import numpy as np
import pytest
import torch

from attendant.runtime.stepper import DecoderState
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper, candidates
from tests.bundles import tiny_model

NO_BANS = torch.empty(2, 0, dtype=torch.int64)
NONE_FORCED = torch.full((2,), -1)


def test_candidates_are_normalized_with_the_most_probable_first() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    log_probs, ids, forced = candidates(probabilities.log() + 7, NONE_FORCED, NO_BANS, 2)
    assert ids.tolist() == [[1, 2], [0, 2]]
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.6, 0.3], [0.5, 0.3]]))
    assert forced.tolist() == [0, 0]


def test_forced_symbols_get_their_log_probability() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    _, _, forced = candidates(probabilities.log(), torch.tensor([0, -1]), NO_BANS, 1)
    torch.testing.assert_close(forced.exp(), torch.tensor([0.1, 1.0]))


def test_banned_symbols_are_removed_before_normalization() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    banned = torch.tensor([[1, -1, -1], [-1, 0, 0]])
    log_probs, ids, forced = candidates(probabilities.log(), torch.tensor([1, 2]), banned, 3)
    assert ids[:, :2].tolist() == [[2, 0], [2, 1]]
    torch.testing.assert_close(log_probs[:, :2].exp(), torch.tensor([[0.75, 0.25], [0.6, 0.4]]))
    assert (log_probs[:, 2] < -1e8).all()
    assert forced[0] < -1e8
    torch.testing.assert_close(forced[1].exp(), torch.tensor(0.6))


def test_padding_bans_nothing_even_alongside_a_ban_of_symbol_zero() -> None:
    logits = torch.zeros(1, 3)
    _, ids, _ = candidates(logits, torch.tensor([-1]), torch.tensor([[-1, 0, -1]]), 2)
    assert ids.tolist() == [[1, 2]]


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.zeros(3, 1000)
    logits[0, 900] = 1
    logits[1, [3, 800]] = 2
    logits[2] = torch.arange(1000).flip(0)
    _, ids, _ = candidates(logits, torch.full((3,), -1), torch.empty(3, 0, dtype=torch.int64), 4)
    assert ids.tolist() == [[900, 0, 1, 2], [3, 800, 0, 1], [0, 1, 2, 3]]


SOURCES = [[4, 5, 6, 3], [7, 3], [9, 10, 11, 12, 13, 8, 7, 6, 3]]


def members() -> list[Seq2Seq]:
    """Returns models of several cells, depths and attentions. The rows of coverage are as wide as the sources."""
    return [
        tiny_model(seed=1),
        tiny_model(seed=2, cell="gru", attention_score="additive", attention_coverage=True),
        tiny_model(seed=3, decoder_num_layers=2, decoder_input_feeding=True),
    ]


def test_probabilities_of_an_ensemble_are_the_mean() -> None:
    models = members()
    steppers = [TorchStepper(item) for item in (Ensemble(models), *models)]
    states = [stepper.encode(SOURCES) for stepper in steppers]
    previous = np.array([2, 2, 2])
    for symbol in (5, 7, 9):
        size = models[0].target_vocabulary_size
        result = []
        for place, stepper in enumerate(steppers):
            output, states[place] = stepper.step(states[place], previous, num_candidates=size, attention=True)
            probabilities = np.zeros((3, size))
            np.put_along_axis(probabilities, output.candidate_ids, np.exp(output.candidate_log_probs), 1)
            result.append((probabilities, output.attention))
        (together, weights), *apart = result
        np.testing.assert_allclose(together, np.mean([each for each, _ in apart], axis=0), atol=1e-6)
        np.testing.assert_allclose(weights, np.mean([each for _, each in apart], axis=0), atol=1e-6)
        previous = np.full(3, symbol)


def test_an_ensemble_of_different_vocabularies_is_refused() -> None:
    with pytest.raises(ValueError, match="same vocabularies"):
        Ensemble([tiny_model(), tiny_model(shared_embeddings=True)])
    with pytest.raises(ValueError):
        Ensemble([])


@pytest.fixture
def stepper() -> TorchStepper:
    return TorchStepper(tiny_model())


def test_new_sources_join_running_rows() -> None:
    """Compares rows that joined with separate rows; those of coverage are as wide as the longest source."""
    for model in members():
        stepper, size = TorchStepper(model), model.target_vocabulary_size

        def log_probs(state: DecoderState, previous: list[int]) -> np.ndarray:
            output, _ = stepper.step(state, np.array(previous), num_candidates=size)  # noqa: B023
            return np.take_along_axis(output.candidate_log_probs, output.candidate_ids.argsort(1), 1)

        _, running = stepper.step(stepper.encode(SOURCES[:1]), np.array([2]), num_candidates=1)
        joined = stepper.concat([running, stepper.encode(SOURCES[1:])])
        assert joined.row_sources.tolist() == [0, 1, 2]
        assert joined.source_tensors["source_mask"][0].nonzero().flatten().tolist() == [0, 1, 2, 3]
        together = log_probs(joined, [5, 2, 2])
        apart = [log_probs(running, [5]), log_probs(stepper.encode(SOURCES[1:]), [2, 2])]
        np.testing.assert_allclose(together, np.concatenate(apart), rtol=1e-5, atol=1e-5)


def test_attention_is_returned_only_when_requested(stepper: TorchStepper) -> None:
    state, previous = stepper.encode(SOURCES), np.array([3, 3, 3])
    output, _ = stepper.step(state, previous, num_candidates=2)
    assert output.attention is None
    output, _ = stepper.step(state, previous, num_candidates=2, attention=True)
    assert output.attention is not None
    np.testing.assert_allclose(output.attention.sum(1), 1, rtol=1e-6)
    assert not output.attention[1, 2:].any()


def test_more_candidates_than_symbols_are_clipped(stepper: TorchStepper) -> None:
    output, _ = stepper.step(stepper.encode(SOURCES), np.array([3, 3, 3]), num_candidates=99)
    assert output.candidate_ids.shape == (3, stepper.vocabulary_size)


def test_training_goes_on_as_it_was_and_decoding_has_no_dropout() -> None:
    model = Seq2Seq(ModelConfig(embedding_size=4, hidden_size=6, dropout=0.9), 12, 20).train()
    stepper = TorchStepper(model)
    first, second = (
        stepper.step(stepper.encode([[4, 5, 6]]), np.array([3]), num_candidates=20)[0].candidate_log_probs
        for _ in range(2)
    )
    assert model.encoder.dropout.training
    np.testing.assert_array_equal(first, second)


def test_an_empty_source_is_refused(stepper: TorchStepper) -> None:
    with pytest.raises(ValueError, match="at least one symbol"):
        stepper.encode([[3], []])


def test_a_model_without_attention_has_none_to_show() -> None:
    stepper = TorchStepper(tiny_model(attention_score="none"))
    output, _ = stepper.step(stepper.encode(SOURCES), np.array([3, 3, 4]), num_candidates=2, attention=True)
    assert output.attention is None
