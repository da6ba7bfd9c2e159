import torch

from attendant.training.model import ModelConfig
from attendant.training.model.config import JoiningKind
from attendant.training.model.readout import JOININGS, Joining

CONTEXT, HIDDEN, EMBEDDED = torch.randn(2, 8), torch.randn(2, 4), torch.randn(2, 3)


def build(kind: JoiningKind) -> Joining:
    torch.manual_seed(0)
    return JOININGS[kind](ModelConfig(embedding_size=3, hidden_size=4, decoder={"joining": kind}))


def test_every_joining_has_its_class() -> None:
    assert set(JOININGS) == set(JoiningKind.__args__)


def test_tanh() -> None:
    joining = build("tanh")
    expected = torch.tanh(torch.cat([CONTEXT, HIDDEN], 1) @ joining.project.weight.T)
    torch.testing.assert_close(joining(CONTEXT, HIDDEN, EMBEDDED), expected)


def test_addition() -> None:
    joining = build("addition")
    torch.testing.assert_close(joining(CONTEXT, HIDDEN, EMBEDDED), HIDDEN + CONTEXT @ joining.project.weight.T)


def test_maxout_takes_the_larger_of_each_pair() -> None:
    joining = build("maxout")
    both = torch.cat([CONTEXT, HIDDEN, EMBEDDED], 1) @ joining.project.weight.T + joining.project.bias
    torch.testing.assert_close(joining(CONTEXT, HIDDEN, EMBEDDED), both.view(2, 2, 4).amax(1))
