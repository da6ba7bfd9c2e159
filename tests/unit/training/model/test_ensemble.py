"""An ensemble's probabilities are the mean of its members', and it decodes as one model."""

import numpy as np
import pytest

from attendant.runtime.bundle.tokenizer import special_ids
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper
from tests.bundles import tiny_model

SOURCES = [[4, 5, 6, 3], [7, 3], [9, 10, 11, 12, 13, 8, 3]]


def members() -> list[Seq2Seq]:
    """Of several cells, depths and attentions: one has its own coverage, whose rows are as wide as the sources."""
    return [
        tiny_model(seed=1),
        tiny_model(seed=2, cell="gru", attention_score="additive", attention_coverage=True),
        tiny_model(seed=3, decoder_num_layers=2, decoder_input_feeding=True),
    ]


def test_probabilities_are_the_mean() -> None:
    models = members()
    steppers = [TorchStepper(one) for one in (Ensemble(models), *models)]
    states = [stepper.encode(SOURCES) for stepper in steppers]
    previous = np.array([2, 2, 2])
    for symbol in (5, 7, 9):
        size = models[0].target_vocabulary_size
        found = []
        for place, stepper in enumerate(steppers):
            output, states[place] = stepper.step(states[place], previous, num_candidates=size, attention=True)
            probabilities = np.zeros((3, size))
            np.put_along_axis(probabilities, output.candidate_ids, np.exp(output.candidate_log_probs), 1)
            found.append((probabilities, output.attention))
        (together, weights), *apart = found
        np.testing.assert_allclose(together, np.mean([each for each, _ in apart], axis=0), atol=1e-6)
        np.testing.assert_allclose(weights, np.mean([each for _, each in apart], axis=0), atol=1e-6)
        previous = np.full(3, symbol)


def test_a_model_beside_itself_decodes_as_it_does_alone() -> None:
    model = tiny_model()
    ids = special_ids(model.start_id)
    options = DecodingOptions(beam_size=3, max_length=12)
    alone = decode_all(TorchStepper(model), SOURCES, options, ids)
    together = decode_all(TorchStepper(Ensemble([model, model])), SOURCES, options, ids)
    for one, other in zip(alone, together, strict=True):
        assert [each.token_ids for each in one] == [each.token_ids for each in other]
        assert [each.score for each in other] == pytest.approx([each.score for each in one], abs=1e-5)


def test_other_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="same vocabularies"):
        Ensemble([tiny_model(), tiny_model(shared_embeddings=True)])
    with pytest.raises(ValueError):
        Ensemble([])
