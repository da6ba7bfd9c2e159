import pytest
import torch
from torch import nn

from attendant.training.model import ModelConfig
from attendant.training.model.encoder import Encoder, reverse

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
