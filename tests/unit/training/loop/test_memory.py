"""A model that can't fit is refused before it is built, and an allocation that fails is one line."""

import pytest
import torch

from attendant.runtime.errors import UserError
from attendant.training.loop.experiment import check_memory, total_memory, translate_memory_errors
from attendant.training.model import ModelConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize("sizes", [{"hidden_size": 200_000}, {"embedding_size": 10**10}])
def test_a_model_that_can_not_fit_is_refused_with_its_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(UserError) as caught:
        check_memory(ModelConfig(**sizes), 5, 5, optimizer="adam", device=CPU)
    ((name, value),) = sizes.items()
    assert f"model.{name} = {value}" in str(caught.value) and "lower" in str(caught.value)


def test_a_model_that_fits_passes() -> None:
    check_memory(ModelConfig(), 8000, 8000, optimizer="sgd", device=CPU)
    limit = total_memory(CPU)
    assert limit is not None and limit > 2**28


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce] not enough memory: you tried"),
                                   torch.OutOfMemoryError("CUDA out of memory")])  # fmt: skip
def test_a_failed_allocation_names_the_remedy(error: Exception) -> None:
    with pytest.raises(UserError, match=r"halve batches\.max_tokens"), translate_memory_errors():
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), translate_memory_errors():
        raise RuntimeError("shape mismatch")
