import torch

from attendant.training.model import ModelConfig
from attendant.training.model.config import ReadoutKind
from attendant.training.model.readout import READOUTS, Readout

CONTEXT, HIDDEN, EMBEDDED = torch.randn(2, 8), torch.randn(2, 4), torch.randn(2, 3)


def build(kind: ReadoutKind) -> Readout:
    torch.manual_seed(0)
    return READOUTS[kind](ModelConfig(embedding_size=3, hidden_size=4, decoder={"readout": kind}))


def test_every_readout_has_its_class() -> None:
    assert set(READOUTS) == set(ReadoutKind.__args__)


def test_tanh() -> None:
    readout = build("tanh")
    expected = torch.tanh(torch.cat([CONTEXT, HIDDEN], 1) @ readout.project.weight.T)
    torch.testing.assert_close(readout(CONTEXT, HIDDEN, EMBEDDED), expected)


def test_addition() -> None:
    readout = build("addition")
    torch.testing.assert_close(readout(CONTEXT, HIDDEN, EMBEDDED), HIDDEN + CONTEXT @ readout.project.weight.T)


def test_maxout_takes_the_larger_of_each_pair() -> None:
    readout = build("maxout")
    both = torch.cat([CONTEXT, HIDDEN, EMBEDDED], 1) @ readout.project.weight.T + readout.project.bias
    torch.testing.assert_close(readout(CONTEXT, HIDDEN, EMBEDDED), both.view(2, 2, 4).amax(1))
