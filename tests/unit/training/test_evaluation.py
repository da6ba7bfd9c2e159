"""Evaluation decodes once, with the search that serves, and says how it measured."""

from runtime.tokenizer import special_ids
from tests.fakes import FakeStepper
from training.data.pairs import Example
from training.evaluation import EvaluationConfig, evaluate
from training.tokenization import TokenizerConfig, train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(tokenizer="character"), ["abcd"])


def measure(examples: list[Example], **config: object) -> list:
    return evaluate(
        FakeStepper(TOKENIZER.vocabulary_size),
        examples,
        TOKENIZER,
        TOKENIZER,
        EvaluationConfig.model_validate(config),
        special_ids=special_ids(2),
        append_eos=True,
        max_length=6,
        data_name="words.tsv",
        progress=finished.append,
    )


finished: list[int] = []


def test_a_result_carries_its_protocol() -> None:
    finished.clear()
    wer, per = measure([Example("ab", ("c d", "e")), Example("cd", ("a",))], metrics=["wer", "per"], beam_size=2)
    assert (wer.metric, per.metric, wer.num_examples) == ("wer", "per", 2)
    assert wer.decoding == {"beam_size": 2, "length_penalty": 0.0, "max_length": 6}
    assert wer.protocol == (
        "words.tsv; % of examples (words) whose output equals none of the listed references (pronunciations); "
        "beam 2, length penalty 0, at most 6 tokens"
    )
    assert "greedy" in measure([Example("ab", ("c",))], metrics=["wer"])[0].protocol
    assert sum(finished) == 3


def test_what_the_model_says_is_what_is_scored() -> None:
    (first,) = measure([Example("ab", ("?",))], metrics=["exact_match"])
    assert first.value == 0.0
    from runtime.decoding.offline import decode_all
    from runtime.decoding.options import DecodingOptions

    ((hypothesis,),) = decode_all(
        FakeStepper(TOKENIZER.vocabulary_size),
        [[*TOKENIZER.encode("ab"), 3]],
        DecodingOptions(max_length=6),
        special_ids(2),
    )
    said = TOKENIZER.decode(hypothesis.token_ids)
    (second,) = measure([Example("ab", ("?", said))], metrics=["exact_match"])
    assert second.value == 100.0
