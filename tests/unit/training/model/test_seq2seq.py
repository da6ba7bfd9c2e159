import pytest
import torch
from torch import nn

from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID
from attendant.training.model import ModelConfig, Seq2Seq
from attendant.training.model.encoder import Encoder, reverse

SMALL = {"embedding_size": 6, "hidden_size": 6}


def build(**tables: object) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(ModelConfig(**{**SMALL, **tables}), 11, 13).eval()


def teacher_force(model: Seq2Seq) -> torch.Tensor:
    return model(torch.tensor([[4, 5, 6]]), torch.tensor([3]), torch.tensor([[2, 7, 8, 9]]))


def test_tied_embeddings_are_one_parameter() -> None:
    tied = build(decoder={"tied_embeddings": True})
    assert tied.output.weight is None
    names = set(build().state_dict()) - set(tied.state_dict())
    assert names == {"output.weight"}


def test_initial_weights_are_those_of_the_papers() -> None:
    torch.manual_seed(0)
    uniform = tiny_model_of("uniform")
    for name, weights in uniform.named_parameters():
        assert 0.06 < weights.abs().max() <= 0.08, name
    normal = tiny_model_of("normal")
    for name, weights in normal.named_parameters():
        if weights.dim() == 1:
            assert not weights.any(), name
        elif "weight_hh" in name:
            gate = weights[: weights.shape[1]]
            torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)))
        else:
            deviation = 0.001 if "score" in name else 0.01
            assert weights.std().item() == pytest.approx(deviation, rel=0.2), name


def tiny_model_of(initialization: str) -> Seq2Seq:
    sizes = {"embedding_size": 20, "hidden_size": 24, "encoder": {"bidirectional": False}}
    options = {"attention": {"score": "additive"}, "initialization": initialization}
    return Seq2Seq(ModelConfig.model_validate(sizes | options), 40, 41)


def test_the_bias_of_the_forget_gate_starts_at_one() -> None:
    rnn = build().decoder.cells[0].rnn
    assert (rnn.bias_ih_l0[6:12] + rnn.bias_hh_l0[6:12]).tolist() == [1.0] * 6


def test_shared_embeddings_are_one_parameter_and_need_one_vocabulary() -> None:
    config = ModelConfig(**SMALL, shared_embeddings=True)
    shared = Seq2Seq(config, 11, 11).eval()
    assert not any(name.startswith("source_embedding") for name in shared.state_dict())
    teacher_force(shared)
    with pytest.raises(ValueError, match=r"shared_embeddings.* 11 symbols .* 13"):
        Seq2Seq(config, 11, 13)


def test_decoding_starts_with_the_configured_symbol() -> None:
    assert build().start_id == BOS_ID
    assert build(decoder={"start_symbol": "eos"}).start_id == EOS_ID


def test_pad_and_bos_are_impossible() -> None:
    probabilities = teacher_force(build()).softmax(-1)
    assert not probabilities[..., [PAD_ID, BOS_ID]].any()
    assert probabilities[..., 3:].all()


LENGTHS = torch.tensor([3, 1, 5])


def test_a_reversed_source_is_read_from_its_end_and_keeps_its_places() -> None:
    def build(reverse_source: bool) -> Encoder:
        torch.manual_seed(0)
        encoder = {"num_layers": 2, "bidirectional": False, "reverse_source": reverse_source}
        return Encoder(ModelConfig(embedding_size=4, hidden_size=3, encoder=encoder)).eval()

    embedded = torch.randn(3, 5, 4)
    outputs, finals = build(True)(embedded, LENGTHS)
    mirrored, expected = build(False)(reverse(embedded, LENGTHS), LENGTHS)
    torch.testing.assert_close(outputs, reverse(mirrored, LENGTHS))
    torch.testing.assert_close(finals[-1], expected[-1])


@pytest.mark.parametrize("residual", [True, False])
def test_residual_connections_begin_at_the_third_layer(residual: bool) -> None:
    torch.manual_seed(0)
    encoder = Encoder(ModelConfig(embedding_size=4, hidden_size=3, residual=residual, encoder={"num_layers": 4})).eval()
    for layer in encoder.layers[2:]:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)  # such a layer adds nothing
    embedded = torch.randn(3, 5, 4)
    outputs, _ = encoder(embedded, LENGTHS)
    second, _ = encoder.layers[1](encoder.layers[0](embedded, LENGTHS)[0], LENGTHS)
    assert second.any()
    torch.testing.assert_close(outputs, second if residual else torch.zeros_like(second))
