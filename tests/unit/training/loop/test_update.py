"""Tests of scheduled sampling, which replaces inputs by the model's own predictions, and of updates.

An update does not depend on the division of its pairs into batches. It depends on the precision only by rounding.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID
from attendant.training.data.batches import Batch, collate
from attendant.training.data.corpus import Corpus, TokenSequences
from attendant.training.kernels.hardware import PrecisionName
from attendant.training.loop.update import Processes, Updater, sampled_inputs
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.decoder import TeacherForcing
from attendant.training.optimization import OptimizerConfig, make_optimizer
from attendant.training.recipe import TrainerConfig

SIZES = {"embedding_size": 6, "hidden_size": 8, "dropout": 0.0, "encoder": {"hidden_size": 4}}
TARGETS = TokenSequences.of([[4, 5, 6, 7], [5], [8, 9]])
BATCH = collate(Corpus(TARGETS, TARGETS, num_too_long=0), range(3), BOS_ID)


def model_saying(offset: int) -> Seq2Seq:
    """Returns a model that predicts EOS after symbol 9, and `symbol + offset` after any other symbol."""
    torch.manual_seed(1)
    model = Seq2Seq(ModelConfig.model_validate(SIZES), 12, 12)

    def logits(source_ids: object, lengths: object, previous_ids: torch.Tensor, positions: torch.Tensor):
        message = previous_ids.flatten()[positions]
        return 99.0 * torch.nn.functional.one_hot(torch.where(message == 9, EOS_ID, message + offset), 12).float()

    model.forward = logits  # type: ignore[method-assign]
    return model


def test_each_input_is_predicted_from_the_true_symbols_before_it() -> None:
    assert sampled_inputs(model_saying(2), BATCH, 1.0).tolist() == [
        [BOS_ID, BOS_ID + 2, 6, 7, 8],
        [BOS_ID, BOS_ID + 2, PAD_ID, PAD_ID, PAD_ID],
        [BOS_ID, BOS_ID + 2, 10, PAD_ID, PAD_ID],
    ]


def test_a_predicted_end_is_not_an_input() -> None:
    targets = TokenSequences.of([[9, 9]])
    batch = collate(Corpus(targets, targets, num_too_long=0), range(1), BOS_ID)
    assert sampled_inputs(model_saying(2), batch, 1.0).tolist() == [[BOS_ID, BOS_ID + 2, 9]]


def test_inputs_are_sampled_with_the_given_probability() -> None:
    model = model_saying(2)
    assert torch.equal(sampled_inputs(model, BATCH, 0.0), BATCH.previous_ids)
    torch.manual_seed(2)
    num_changed = sum(int((sampled_inputs(model, BATCH, 0.5) != BATCH.previous_ids).sum()) for _ in range(400))
    assert num_changed / 400 == pytest.approx(6 / 2, abs=0.2)


CPU = torch.device("cpu")


def random_corpus(num_pairs: int = 9) -> Corpus:
    torch.manual_seed(3)
    sides = [
        TokenSequences.of(
            [torch.randint(4, 11, (int(length),)).tolist() for length in torch.randint(1, 7, (num_pairs,))]
        )
        for _ in range(2)
    ]
    return Corpus(*sides, num_too_long=0)


CORPUS = random_corpus()


def model(**options: object) -> Seq2Seq:
    torch.manual_seed(1)
    return Seq2Seq(ModelConfig.model_validate(SIZES | options), 11, 11)


class Bigrams(nn.Module):
    """Predicts each symbol from the previous one, because a CPU has no recurrent layers in float16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(11, 6)
        self.output = nn.Linear(6, 11)

    def teacher_forcing(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        previous_ids: Tensor,
        positions: Tensor,
        *,
        keep_attention: bool,
    ) -> TeacherForcing:
        del source_ids, source_lengths, keep_attention
        return TeacherForcing(self.embedding(previous_ids.flatten()[positions]), weights=None, copies=None)

    def output_layer(self) -> tuple[Tensor, Tensor]:
        return self.output.weight, self.output.bias


def updater(trained: nn.Module, *, precision: PrecisionName = "fp32", clip_norm: float = 0.3) -> Updater:
    optimizer = make_optimizer(OptimizerConfig(kind="sgd", momentum=0.9, learning_rate=0.1), trained.parameters())
    return Updater(
        trained,
        optimizer,
        TrainerConfig(label_smoothing=0.1, clip_norm=clip_norm),
        precision=precision,
        device=CPU,
        processes=Processes(),
    )


def batches(*sizes: int) -> list[Batch]:
    ends = list(itertools.accumulate(sizes))
    return [collate(CORPUS, range(end - size, end), 2) for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 8), (8, 1)])
def test_accumulated_batches_equal_one_batch(sizes: tuple[int, ...]) -> None:
    together, apart = model(), model()
    at_once, in_parts = updater(together), updater(apart)
    num_tokens = int(CORPUS.targets.lengths.sum()) + len(CORPUS)
    for _ in range(4):
        each, other = at_once.gradient(batches(9), num_tokens), in_parts.gradient(batches(*sizes), num_tokens)
        assert each.loss == pytest.approx(other.loss, rel=1e-6)
        assert each.norm == pytest.approx(other.norm, rel=1e-5)
        at_once.step(0.1)
        in_parts.step(0.1)
    for name, weight in together.state_dict().items():
        torch.testing.assert_close(apart.state_dict()[name], weight, rtol=1e-5, atol=1e-7)


def test_a_gradient_is_clipped_to_the_norm_and_left_alone_below_it() -> None:
    trained = model()
    num_tokens = batches(9)[0].num_target_tokens

    def gradients(clip_norm: float) -> tuple[float, Tensor]:
        result = updater(trained, clip_norm=clip_norm).gradient(batches(9), num_tokens)
        return result.norm, torch.cat([weight.grad.flatten() for weight in trained.parameters()])

    norm, whole = gradients(0.0)
    assert float(whole.norm()) == pytest.approx(norm, rel=1e-5)
    for clip_norm in (2 * norm, norm / 2):
        same_norm, clipped = gradients(clip_norm)
        assert same_norm == norm
        torch.testing.assert_close(clipped, whole * min(1.0, clip_norm / norm), rtol=1e-4, atol=1e-9)


def test_bfloat16_computes_otherwise_and_keeps_full_weights() -> None:
    # A processor without AVX-512 has no LSTM in bfloat16.
    full, low = model(cell="gru"), model(cell="gru")
    num_tokens = batches(9)[0].num_target_tokens
    exact = updater(full).gradient(batches(9), num_tokens)
    rounded = updater(low, precision="bf16").gradient(batches(9), num_tokens)
    assert rounded.loss != exact.loss
    assert rounded.loss == pytest.approx(exact.loss, rel=0.01)
    assert rounded.norm == pytest.approx(exact.norm, rel=0.1)
    assert {weight.dtype for weight in low.parameters()} == {torch.float32}


def test_float16_leaves_an_update_out_that_overflows_and_lowers_its_scale() -> None:
    trained = Bigrams()
    learner = updater(trained, precision="fp16")
    num_tokens = batches(9)[0].num_target_tokens
    learner.scaler.load_state_dict(learner.scaler.state_dict() | {"scale": 2.0**40})
    before = [weight.clone() for weight in trained.parameters()]
    result = learner.gradient(batches(9), num_tokens)
    assert result.overflowed and math.isfinite(result.loss) and not math.isfinite(result.norm)
    learner.step(0.1)
    assert learner.scaler.get_scale() == 2.0**39
    assert all(torch.equal(weight, same) for weight, same in zip(trained.parameters(), before, strict=True))
    learner.scaler.load_state_dict(learner.scaler.state_dict() | {"scale": 2.0**10})
    result = learner.gradient(batches(9), num_tokens)
    # The norm is that of the gradient without the scale.
    assert not result.overflowed and result.norm == pytest.approx(
        updater(Bigrams()).gradient(batches(9), num_tokens).norm, rel=0.05
    )
    learner.step(0.1)
    assert not all(torch.equal(weight, same) for weight, same in zip(trained.parameters(), before, strict=True))
