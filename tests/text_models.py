"""A text model whose decoder is a fake."""

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.evaluation.evaluating import TextModel
from tests.fakes import SPECIAL_IDS, FakeStepper

LETTERS = train_tokenizer(TokenizerConfig(tokenizer="character"), ["abcd"])


def fake_text_model(*, source_tokenizer: Tokenizer = LETTERS, append_eos: bool = True) -> TextModel:
    """Returns a model that answers with letters from a to d."""
    return TextModel(
        stepper=FakeStepper(LETTERS.vocabulary_size),
        source_tokenizer=source_tokenizer,
        target_tokenizer=LETTERS,
        special_ids=SPECIAL_IDS,
        append_eos=append_eos,
        max_length=6,
    )
