"""The stepper's algebra: rows selected and joined behave as they did apart."""

import numpy as np
import pytest
import torch

from attendant.runtime.stepper import DecoderState
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.stepper import TorchStepper

SOURCES = [[4, 5, 6], [7] * 11, [8, 9]]


@pytest.fixture(params=["current", "previous", "coverage"])
def stepper(request: pytest.FixtureRequest) -> TorchStepper:
    torch.manual_seed(0)
    coverage = request.param == "coverage"
    attention = {
        "score": "general" if request.param == "current" else "additive",
        "query": "current" if coverage else request.param,
        "coverage": coverage,
    }
    decoder = {"num_layers": 2, "input_feeding": request.param == "current"}
    return TorchStepper(
        Seq2Seq(ModelConfig(embedding_size=4, hidden_size=6, attention=attention, decoder=decoder), 12, 20)
    )


def advance(stepper: TorchStepper, state: DecoderState, ids: list[int]) -> tuple[np.ndarray, DecoderState]:
    output, state = stepper.step(state, np.array(ids), num_candidates=20)
    order = output.candidate_ids.argsort(1)
    return np.take_along_axis(output.candidate_log_probs, order, 1), state


def test_rows_of_a_beam_share_their_source(stepper: TorchStepper) -> None:
    beam = stepper.select(stepper.encode(SOURCES), np.array([0, 0, 0, 2, 1, 1]))
    assert beam.source_tensors["memory"].shape[0] == 3
    log_probs, _ = advance(stepper, beam, [3, 4, 5, 3, 3, 4])
    for row, (source, previous) in enumerate(zip([0, 0, 0, 2, 1, 1], [3, 4, 5, 3, 3, 4], strict=True)):
        alone, _ = advance(stepper, stepper.encode([SOURCES[source]]), [previous])
        np.testing.assert_allclose(log_probs[row], alone[0], rtol=1e-5, atol=1e-6)


def test_a_source_without_rows_leaves(stepper: TorchStepper) -> None:
    state = stepper.select(stepper.encode(SOURCES), np.array([2, 0]))
    assert state.num_sources == 2
    assert state.source_lengths.tolist() == [3, 2]
    assert state.row_sources.tolist() == [1, 0]


def test_newcomers_join_running_rows(stepper: TorchStepper) -> None:
    _, running = advance(stepper, stepper.encode(SOURCES[:1]), [3])
    joined = stepper.concat([running, stepper.encode(SOURCES[1:])])
    assert joined.row_sources.tolist() == [0, 1, 2]
    log_probs, _ = advance(stepper, joined, [5, 3, 3])
    np.testing.assert_allclose(log_probs[:1], advance(stepper, running, [5])[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        log_probs[2:], advance(stepper, stepper.encode(SOURCES[2:]), [3])[0], rtol=1e-5, atol=1e-6
    )


def test_attention_only_when_asked_for(stepper: TorchStepper) -> None:
    state = stepper.encode(SOURCES)
    output, _ = stepper.step(state, np.array([3, 3, 3]), num_candidates=2)
    assert output.attention is None
    output, _ = stepper.step(state, np.array([3, 3, 3]), num_candidates=2, attention=True)
    assert output.attention.shape == (3, 16)
    np.testing.assert_allclose(output.attention.sum(1), 1, rtol=1e-6)
    assert not output.attention[2, 2:].any()


def test_more_candidates_than_symbols_are_clipped(stepper: TorchStepper) -> None:
    output, _ = stepper.step(stepper.encode(SOURCES), np.array([3, 3, 3]), num_candidates=99)
    assert output.candidate_ids.shape == (3, 20)
    assert stepper.vocabulary_size == 20


def test_training_goes_on_as_it_was_and_decoding_has_no_dropout() -> None:
    model = Seq2Seq(ModelConfig(embedding_size=4, hidden_size=6, dropout=0.9), 12, 20).train()
    stepper = TorchStepper(model)
    first, _ = advance(stepper, stepper.encode(SOURCES), [3, 3, 3])
    second, _ = advance(stepper, stepper.encode(SOURCES), [3, 3, 3])
    assert model.training
    assert model.encoder.dropout.training
    np.testing.assert_array_equal(first, second)


def test_an_empty_source_is_refused(stepper: TorchStepper) -> None:
    with pytest.raises(ValueError, match="at least one symbol"):
        stepper.encode([[3], []])


def test_a_model_without_attention_has_none_to_show() -> None:
    stepper = TorchStepper(Seq2Seq(ModelConfig(embedding_size=4, hidden_size=6, attention={"score": "none"}), 12, 20))
    state = stepper.select(stepper.encode(SOURCES), np.array([2, 0, 0]))
    output, _ = stepper.step(state, np.array([3, 3, 4]), num_candidates=2, attention=True)
    assert output.attention is None
    assert not state.source_tensors
