import pytest
from pydantic import ValidationError

from attendant.training.model import ModelConfig


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"hidden_size": 6, "attention": {"score": "dot"}}, ["2 x 6 = 12", "model.encoder.hidden_size = 3"]),
        ({"hidden_size": 7, "attention": {"score": "dot"}}, ["2 x 7 = 14", "set model.attention.key_size"]),
        (
            {"hidden_size": 6, "encoder": {"hidden_size": 5, "bidirectional": False}, "attention": {"score": "dot"}},
            ["1 x 5 = 5", "model.encoder.hidden_size = 6"],
        ),
        ({"attention": {"score": "general", "key_size": 4}}, ["model.attention.key_size = 4", "leave it out"]),
        ({"attention": {"query": "previous"}, "decoder": {"input_feeding": True}}, ["input_feeding", "current"]),
        ({"embedding_size": 4, "hidden_size": 6, "decoder": {"tied_embeddings": True}}, ["tied", "got 4 and 6"]),
        ({"attention": {"score": "concat", "coverage": True}}, ["coverage", '"concat"', 'score = "additive"']),
        ({"decoder": {"source_vector": True}}, ["source_vector", 'score = "none"']),
        ({"attention": {"score": "none", "query": "previous"}}, ["query", '"none"', "leave it out"]),
        ({"attention": {"score": "none", "key_size": 2}}, ["key_size = 2", '"none"']),
        ({"attention": {"score": "none", "value_size": 2}}, ["value_size = 2", '"none"']),
        ({"attention": {"score": "none"}, "decoder": {"input_feeding": True}}, ["input_feeding", '"none"']),
        ({"attention": {"score": "none"}, "decoder": {"readout": "maxout"}}, ["readout", "source_vector = true"]),
        ({"attention": {"score": "none"}, "decoder": {"initial_state": "zeros"}}, ["initial_state", "bridge"]),
        ({"decoder": {"copying": True}}, ["model.decoder.copying", "model.shared_embeddings = true"]),
        ({"attention": {"score": "none"}, "decoder": {"copying": True}}, ["copying", '"none"', "leave it out"]),
        ({"residual": False, "encoder": {"num_layers": 2}}, ["model.residual", "the deepest has 2", "leave it out"]),
        ({"encoder": {"bidirectional": False}, "decoder": {"initial_state": "backward"}}, ["bidirectional = true"]),
        ({"hidden_size": 6, "decoder": {"initial_state": "final"}}, ["states of size 12", "model.encoder.hidden_size"]),
        ({"hidden_size": 6, "decoder": {"readout": "sum"}}, ["contexts of size 12", "addition"]),
        (
            {"embedding_size": 6, "hidden_size": 6, "decoder": {"tied_embeddings": True, "readout": "concatenation"}},
            ["hidden_size + the context's size", "got 6 and 18"],
        ),
        ({"attention": {"value_size": 1}}, ["contexts of size 1", "model.attention.value_size = 2"]),
        ({"encoder": {"hidden_size": 1, "bidirectional": False}}, ["contexts of size 1"]),
        ({"encoder": {"reverse_source": True}}, ["reverse_source", "bidirectional = false"]),
    ],
)
def test_an_impossible_table_is_refused_with_the_reason(table: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        ModelConfig(**table)
    for word in words:
        assert word in str(refused.value)


def test_the_remedies_for_a_refused_dot_score_are_accepted() -> None:
    ModelConfig(hidden_size=6, encoder={"hidden_size": 3}, attention={"score": "dot"})
    ModelConfig(hidden_size=6, encoder={"bidirectional": False}, attention={"score": "dot"})
    ModelConfig(hidden_size=6, attention={"score": "dot", "key_size": 4})
