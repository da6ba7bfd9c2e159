import torch

from attendant.training.model.stepper import candidates

NO_BANS = torch.empty(2, 0, dtype=torch.int64)
NONE_FORCED = torch.full((2,), -1)


def test_the_most_probable_first_and_normalized() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    log_probs, ids, forced = candidates(probabilities.log() + 7, NONE_FORCED, NO_BANS, 2)
    assert ids.tolist() == [[1, 2], [0, 2]]
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.6, 0.3], [0.5, 0.3]]))
    assert forced.tolist() == [0, 0]


def test_forced_symbols_get_their_log_probability() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    _, _, forced = candidates(probabilities.log(), torch.tensor([0, -1]), NO_BANS, 1)
    torch.testing.assert_close(forced.exp(), torch.tensor([0.1, 1.0]))


def test_bans_leave_before_normalization() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    banned = torch.tensor([[1, -1, -1], [-1, 0, 0]])
    log_probs, ids, forced = candidates(probabilities.log(), torch.tensor([1, 2]), banned, 3)
    assert ids[:, :2].tolist() == [[2, 0], [2, 1]]
    torch.testing.assert_close(log_probs[:, :2].exp(), torch.tensor([[0.75, 0.25], [0.6, 0.4]]))
    assert (log_probs[:, 2] < -1e8).all()
    assert forced[0] < -1e8
    torch.testing.assert_close(forced[1].exp(), torch.tensor(0.6))


def test_padding_bans_nothing_even_beside_a_ban_of_symbol_zero() -> None:
    logits = torch.zeros(1, 3)
    _, ids, _ = candidates(logits, torch.tensor([-1]), torch.tensor([[-1, 0, -1]]), 2)
    assert ids.tolist() == [[1, 2]]


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.zeros(3, 1000)
    logits[0, 900] = 1
    logits[1, [3, 800]] = 2
    logits[2] = torch.arange(1000).flip(0)
    _, ids, _ = candidates(logits, torch.full((3,), -1), torch.empty(3, 0, dtype=torch.int64), 4)
    assert ids.tolist() == [[900, 0, 1, 2], [3, 800, 0, 1], [0, 1, 2, 3]]
