"""Tests of masked positions: the graphs equal PyTorch with the same mask, alone and in a batch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.device import DeviceStepper
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import attention_layout
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import Ensemble, TorchStepper
from tests.bundles import KINDS, tiny_model

SOURCE = [4, 9, 5, 7, 11, 3]
MASKED = (0, 3, 5)


def by_hand(model: Seq2Seq, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log P of each next symbol [T, V] and the attention [T, S], computed with a mask made here."""
    with torch.inference_mode():
        encoded = model.encode(torch.tensor([SOURCE]), torch.tensor([len(SOURCE)]))
        rows, sources = encoded.row_tensors, dict(encoded.source_tensors)
        mask = torch.ones(1, len(SOURCE), dtype=torch.bool)
        mask[0, list(MASKED)] = False
        sources["source_mask"] = mask
        layout = [torch.from_numpy(each) for each in attention_layout(np.zeros(1, np.int64), 1)]
        log_probs, weights = [], []
        for token in [model.start_id, *tokens]:
            logits, rows, attention = model.step(torch.tensor([token]), rows, sources, *layout)
            log_probs.append(logits.log_softmax(-1)[0])
            weights.append(attention[0])
    return torch.stack(log_probs), torch.stack(weights)


@pytest.mark.parametrize("kind", ["lstm", "bahdanau", "see"])
def test_the_graphs_mask_as_pytorch_does(kind: str, bundle_of_kind: Callable[[str], Path]) -> None:
    model, bundle = tiny_model(**KINDS[kind]), open_bundle(bundle_of_kind(kind))
    options = DecodingOptions(max_length=8, attention=True, masked_source_positions=MASKED)
    plain = DecodingOptions(max_length=8, attention=True)
    answers = []
    for stepper in (
        OnnxStepper(bundle),
        TorchStepper(model),
        DeviceStepper(bundle, provider="cpu"),
        OnnxStepper(bundle),
    ):
        batch = RunningBatch(stepper, bundle.manifest.special_ids)
        others = [[5, 6, 7], [8] * 12, SOURCE] if len(answers) == 3 else []
        requests = [BatchRequest(key, source, plain) for key, source in enumerate(others, 1)]
        batch.join([*requests, BatchRequest(0, SOURCE, options)])
        finished = {}
        while batch.keys:
            finished |= dict(batch.step().finished)
        answers.append(finished[0][0])
        if others:
            assert finished[3][0].token_log_probs != finished[0][0].token_log_probs
    alone, in_torch, on_device, in_a_batch = answers
    expected, weights = by_hand(model, list(alone.token_ids))
    taken = [*alone.token_ids, *([3] if alone.finish_reason.name == "EOS" else [])]
    np.testing.assert_allclose(alone.token_log_probs, [expected[i, t] for i, t in enumerate(taken)], atol=1e-4)
    np.testing.assert_allclose(alone.attention, weights[: len(taken)], atol=1e-5)
    assert not alone.attention[:, list(MASKED)].any()
    assert in_torch.token_ids == alone.token_ids
    np.testing.assert_allclose(in_torch.token_log_probs, alone.token_log_probs, atol=1e-4)
    for other in (on_device, in_a_batch):
        assert other.token_log_probs == alone.token_log_probs
        np.testing.assert_array_equal(other.attention, alone.attention)


def test_every_member_of_an_ensemble_is_masked() -> None:
    models = [tiny_model(seed=seed) for seed in (1, 2)]
    stepper = TorchStepper(Ensemble(models))
    state = stepper.encode([SOURCE, SOURCE], [(), MASKED])
    output, _ = stepper.step(state, np.array([2, 2]), num_candidates=1, attention=True)
    assert output.attention is not None
    assert output.attention[0, : len(SOURCE)].all() and not output.attention[1, list(MASKED)].any()
