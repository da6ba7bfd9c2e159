"""Random numbers go on where they stood."""

import pytest
import torch

from attendant.training.run.checkpoint import random_state, restore_random_state

CPU = torch.device("cpu")


def test_the_numbers_go_on() -> None:
    state = random_state(CPU)
    wanted = torch.rand(5)
    restore_random_state(state, CPU)
    assert torch.rand(5).equal(wanted)


def test_a_gpus_part_is_left_out_without_one() -> None:
    state = torch.cat([random_state(CPU), torch.ones(16, dtype=torch.uint8)])
    wanted = torch.rand(5)
    restore_random_state(state, CPU)
    assert torch.rand(5).equal(wanted)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_dropout_on_a_gpu_goes_on() -> None:
    device = torch.device("cuda")
    state = random_state(device)
    wanted = torch.rand(5, device=device)
    restore_random_state(state, device)
    assert torch.rand(5, device=device).equal(wanted)
