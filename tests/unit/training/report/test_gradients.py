"""Tests of gradients over time against finite differences and against recurrences with a known Jacobian."""

from typing import Any

import numpy as np
import pytest
import torch

from attendant.runtime.stepper import attention_layout
from attendant.training.model import Seq2Seq
from attendant.training.report.gradients import measure_gradients
from tests.bundles import tiny_config

VOCABULARY = 9
SOURCE, TARGET = [4, 7, 5, 3], [6, 4, 8]
STEP = 1e-6

Tensors = dict[str, torch.Tensor]


def make_model(**options: Any) -> Seq2Seq:
    torch.manual_seed(3)
    model = Seq2Seq(
        tiny_config(embedding_size=5, hidden_size=6, encoder_hidden_size=3, **options), VOCABULARY, VOCABULARY
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


@torch.no_grad()
def losses_from(
    model: Seq2Seq, rows: dict[str, torch.Tensor], source: dict[str, torch.Tensor], first: int
) -> list[float]:
    """Returns the loss of each target position from `first` on; `rows` is the state that step `first` reads."""
    previous, following = [model.start_id, *TARGET], [*TARGET, 3]
    layout = [torch.from_numpy(places) for places in attention_layout(np.arange(1), 1)]
    losses = []
    for position in range(first, len(following)):
        logits, rows, _ = model.step(torch.tensor([previous[position]]), rows, source, *layout)
        losses.append(-float(logits.log_softmax(-1)[0, following[position]]))
    return losses


@torch.no_grad()
def reference(model: Seq2Seq) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Returns r and q by distance, computed by central differences of one number at a time."""
    ids, lengths = torch.tensor([SOURCE]), torch.tensor([len(SOURCE)])
    num_positions = len(TARGET) + 1
    layout = [torch.from_numpy(places) for places in attention_layout(np.arange(1), 1)]
    encoded = model.encode(ids, lengths)
    rows, squares = dict(encoded.row_tensors), np.zeros((num_positions, num_positions))
    for fed in range(num_positions):  # squares[T, i]: squared gradient norm of loss T by the state that step i reads
        for name in rows:
            if name in ("coverage", "vector"):
                continue
            for place in range(rows[name].numel()):
                result = []
                for sign in (1, -1):
                    moved = rows[name].clone()
                    moved.view(-1)[place] += sign * STEP
                    result.append(np.array(losses_from(model, rows | {name: moved}, encoded.source_tensors, fed)))
                squares[fed:, fed] += ((result[0] - result[1]) / (2 * STEP)) ** 2
        previous = torch.tensor([[model.start_id, *TARGET][fed]])
        _, rows, _ = model.step(previous, rows, encoded.source_tensors, *layout)
    of_inputs = np.zeros((num_positions, len(SOURCE)))
    embedding = model.source_embedding
    assert embedding is not None
    for place in range(len(SOURCE)):
        for column in range(embedding.weight.shape[1]):
            result = []
            for sign in (1, -1):
                embedding.weight[SOURCE[place], column] += sign * STEP
                moved = model.encode(ids, lengths)
                result.append(np.array(losses_from(model, dict(moved.row_tensors), moved.source_tensors, 0)))
                embedding.weight[SOURCE[place], column] -= sign * STEP
            of_inputs[:, place] += ((result[0] - result[1]) / (2 * STEP)) ** 2
    states: dict[int, list[float]] = {}
    inputs: dict[int, list[float]] = {}
    for position in range(num_positions):
        nearest = squares[position, position] ** 0.5
        for fed in range(position + 1):
            states.setdefault(position - fed + 1, []).append(squares[position, fed] ** 0.5 / nearest)
        for place in range(len(SOURCE)):
            read = len(SOURCE) - 1 - place if model.config.encoder.reverse_source else place
            distance = position + 1 + len(SOURCE) - (read + 1)
            inputs.setdefault(distance, []).append(of_inputs[position, place] ** 0.5 / nearest)
    return states, inputs


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_input_feeding": True, "encoder_num_layers": 2, "decoder_num_layers": 2},
        {"cell": "gru", "attention_score": "additive", "attention_query": "previous", "attention_coverage": True},
        {"cell": "rnn", "attention_score": "none", "encoder_bidirectional": False, "encoder_reverse_source": True},
        {"cell": "lstm", "attention_score": "none", "decoder_source_vector": True, "decoder_initial_state": "zeros"},
    ],
    ids=["input feeding", "previous query", "reversed, no attention", "zeros, vector"],
)
def test_norms_are_those_of_finite_differences(options: dict[str, Any]) -> None:
    model = make_model(**options)
    # A distance needs ten values to be reported. The last pair is longer, so the others are padded in its batch.
    sources, targets = [SOURCE] * 10 + [[4, 5, 6, 7, 8, 3]], [TARGET] * 10 + [[4] * 5]
    result = measure_gradients(model, sources[:10], targets[:10])
    for reach, by_distance in zip((result.states, result.inputs), reference(model), strict=True):
        assert reach.distances.tolist() == sorted(by_distance)
        expected = [np.median(by_distance[distance]) for distance in sorted(by_distance)]
        np.testing.assert_allclose(reach.median, expected, rtol=2e-5, atol=1e-9)
    together = measure_gradients(model, sources, targets)
    assert (together.num_pairs, together.num_positions) == (11, 10 * 4 + 6)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_a_known_jacobian_gives_its_factor(factor: float) -> None:
    """Uses h' = tanh(c h) around 0: every step back multiplies the gradient by c."""
    config = tiny_config(cell="rnn", attention_score="none", encoder_bidirectional=False)
    model = Seq2Seq(config, VOCABULARY, VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.normal_(model.output.weight)
    with torch.no_grad():
        torch.nn.init.eye_(model.decoder.cells[0].rnn.weight_hh_l0).mul_(factor)
    result = measure_gradients(model, [[4, 5, 3]] * 3, [[4, 5, 6, 7, 8, 4, 5, 6]] * 3)
    np.testing.assert_allclose(result.states.median, factor ** (result.states.distances - 1.0), rtol=1e-12)
    assert result.states.factor_per_step == pytest.approx(factor)
    assert not result.inputs.median.any() and result.inputs.factor_per_step is None


def test_the_model_is_left_as_it_was() -> None:
    model = make_model().float().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    measure_gradients(model, [SOURCE], [TARGET])
    assert model.training and next(model.parameters()).dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_distances_with_too_few_values_are_left_out() -> None:
    result = measure_gradients(make_model(), [SOURCE] * 9, [TARGET] * 9)
    # Each of the nine pairs has four positions: nine losses are four steps from the first state, too few to be
    # reported, and eighteen losses are three steps from a state.
    assert result.states.distances.tolist() == [1, 2, 3]
