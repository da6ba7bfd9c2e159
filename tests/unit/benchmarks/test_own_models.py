"""The benchmarks' modules of users' own: their sizes, and that both forms of one model compute the same."""

import torch

from attendant.export.own import traceable_module
from attendant.export.rewriting.int8 import quantize
from attendant.export.tracing import trace_graphs
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.training.data.vocabulary import read_vocabulary
from benchmarks.job import word_of
from benchmarks.own_models import MODULES, Student
from benchmarks.peers import TRANSFORMERS, transformer_parameters
from benchmarks.workload import QUICK, Workload


def num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_student_has_about_as_many_parameters_as_the_transformer_of_its_sizes() -> None:
    for sizes in TRANSFORMERS.values():
        student = num_parameters(Student(sizes, Workload()))
        assert 0.95 < student / transformer_parameters(**sizes, vocabulary_size=8000) < 1.0


def test_a_students_attention_in_several_layers_and_heads_stays_in_fp32() -> None:
    workload = Workload(vocabulary_size=60)
    vocabulary = read_vocabulary([*SPECIAL_TOKENS, *map(word_of, range(4, 60))], field="source_tokenizer")
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "width": 32, "feed_forward": 64}
    model = traceable_module(Student(sizes, workload), vocabulary, vocabulary, max_source_tokens=40)
    rewritten = quantize(trace_graphs(model))
    dtypes = {spec.name: spec.dtype for spec in rewritten.decoder_step.inputs}
    assert dtypes["keys_0"] == dtypes["values_1"] == "float32"
    assert any("int8" in how for how in rewritten.arithmetic.values())


def test_both_forms_compute_the_same() -> None:
    torch.manual_seed(1)
    gathered, shared = MODULES["gathered"](QUICK), MODULES["shared"](QUICK)
    shared.load_state_dict(gathered.state_dict())
    with torch.no_grad():
        state = shared.encode(torch.randint(4, 200, (2, 7)), torch.tensor([7, 4]))
        row_sources, previous = torch.tensor([0, 1, 0]), torch.tensor([5, 6, 7])
        rows = {name: state[name][row_sources] for name in shared.row_state}
        sources = {name: tensor for name, tensor in state.items() if name not in rows}
        alone = gathered.step(previous, rows, {name: tensor[row_sources] for name, tensor in sources.items()})
        together = shared.step(previous, rows, sources, torch.tensor([[0, 2], [1, 1]]), torch.tensor([0, 2, 1]))
    for number in (0, 2):
        torch.testing.assert_close(alone[number], together[number])
