import pytest
import torch
from torch import Tensor, nn

from training.model.looped import LoopedProduct, looped_linear


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)], ids=["one matrix", "a matrix per row"])
def test_gradients_are_those_of_the_plain_products(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight, addends, first = torch.randn(shape), torch.randn(2, 5, 4), torch.randn(2, 3)

    def run(weight: Tensor, addends: Tensor, first: Tensor) -> Tensor:
        product, inputs = LoopedProduct(weight, addends), first
        for _ in range(5):
            inputs = product(inputs)[:, :3].tanh()  # each step depends on the one before
        return inputs

    def run_plainly(weight: Tensor, addends: Tensor, first: Tensor) -> Tensor:
        inputs = first
        for step in range(5):
            inputs = (torch.einsum("...gi,...i->...g", weight, inputs) + addends[:, step])[:, :3].tanh()
        return inputs

    arguments = [value.double().requires_grad_() for value in (weight, addends, first)]
    torch.testing.assert_close(run(*arguments), run_plainly(*arguments))
    gradients = torch.autograd.grad(run(*arguments).sum(), arguments)
    torch.testing.assert_close(gradients, torch.autograd.grad(run_plainly(*arguments).sum(), arguments))


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_as_a_looped_product(bias: bool) -> None:
    layer, inputs = nn.Linear(3, 4, bias=bias), torch.randn(5, 2, 3)
    product = looped_linear(layer, num_rows=2, num_steps=5)
    torch.stack([product(step) for step in inputs]).square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    layer(inputs).square().sum().backward()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in layer.parameters()])
