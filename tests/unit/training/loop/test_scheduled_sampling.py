"""Inputs of the decoder's own: of the distribution that the model has there, in their places, and nowhere else."""

from pathlib import Path

import pytest
import torch

from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID
from attendant.runtime.errors import UserError
from attendant.training.data.batches import collate
from attendant.training.data.corpus import Corpus, TokenSequences
from attendant.training.loop.update import sampled_inputs
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.recipe import load_recipe

SIZES = {"embedding_size": 6, "hidden_size": 8, "dropout": 0.0, "encoder": {"hidden_size": 4}}
TARGETS = TokenSequences.of([[4, 5, 6, 7], [5], [8, 9]])
BATCH = collate(Corpus(TARGETS, TARGETS, num_too_long=0), range(3), BOS_ID)


def model_saying(offset: int) -> Seq2Seq:
    """After a symbol below 9 it says one `offset` higher, and EOS after 9."""
    torch.manual_seed(1)
    model = Seq2Seq(ModelConfig.model_validate(SIZES), 12, 12)

    def logits(source_ids: object, lengths: object, previous_ids: torch.Tensor, positions: torch.Tensor):
        said = previous_ids.flatten()[positions]
        return 99.0 * torch.nn.functional.one_hot(torch.where(said == 9, EOS_ID, said + offset), 12).float()

    model.forward = logits  # type: ignore[method-assign]
    return model


def test_each_input_is_what_was_said_after_the_true_symbols_before_it() -> None:
    assert sampled_inputs(model_saying(2), BATCH, 1.0).tolist() == [
        [BOS_ID, BOS_ID + 2, 6, 7, 8],
        [BOS_ID, BOS_ID + 2, PAD_ID, PAD_ID, PAD_ID],
        [BOS_ID, BOS_ID + 2, 10, PAD_ID, PAD_ID],
    ]


def test_nothing_follows_the_end() -> None:
    targets = TokenSequences.of([[9, 9]])
    batch = collate(Corpus(targets, targets, num_too_long=0), range(1), BOS_ID)
    assert sampled_inputs(model_saying(2), batch, 1.0).tolist() == [[BOS_ID, BOS_ID + 2, 9]]


def test_without_probability_they_are_the_true_ones_and_half_are_with_a_half() -> None:
    model = model_saying(2)
    assert torch.equal(sampled_inputs(model, BATCH, 0.0), BATCH.previous_ids)
    torch.manual_seed(2)
    num_changed = sum(int((sampled_inputs(model, BATCH, 0.5) != BATCH.previous_ids).sum()) for _ in range(400))
    assert num_changed / 400 == pytest.approx(6 / 2, abs=0.2)


def test_it_needs_an_end_to_rise_to(tiny_recipe: Path) -> None:
    tiny_recipe.write_text(
        tiny_recipe.read_text().replace("max_epochs = 2", "").replace("[validation]", "[validation]\npatience = 1")
    )
    with pytest.raises(UserError, match=r"scheduled_sampling = 0.5 rises towards an end: set training.max_epochs"):
        load_recipe(tiny_recipe, ["training.scheduled_sampling=0.5"])
