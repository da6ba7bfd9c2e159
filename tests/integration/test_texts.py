"""Tests of texts as users send them: they are cleaned, and warnings name the symbols that the vocabulary lacks.

Tests in tests/unit/runtime cover the details of normalization and of prefixes.
"""

from typing import Any

import pytest

import attendant
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.paths import ROOT
from tests.serving import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

Generate = messages.GenerateRequest


async def test_warnings_name_the_unknown_symbols(server: Served) -> None:
    async def warning(text: str, **decoding: Any) -> str:
        request = Generate(text=text, decoding=messages.DecodingOptions(**decoding))
        return str((await server.stub.Generate(request)).warnings[0])

    assert "('漢', '\u0301', 'œ')" in await warning("ab漢\u0301cœ")
    assert "('👩', '👧')" in await warning("a👩\u200d👧")
    assert (await warning("漢字漢")).startswith("no symbol of the source is in the vocabulary ('漢', '字')")
    assert "'7', and 2 more)" in await warning("0123456789")
    cut = await warning("abc", min_length=2, max_length=2)
    assert "max_length = 2 tokens: raise max_length (or max_length_ratio, if it is set), up to 20" in cut
    cut = await warning("abc", min_length=20)
    assert cut == "the answer was cut after max_length = 20 tokens: split the source"
    ended = await warning("abc", min_length=20, no_repeat_ngram_size=1)
    assert ended == "the answer ends after 9 tokens because the bans left no other token"


async def test_a_score_cleans_its_texts_and_warns(server: Served) -> None:
    async def score(source: str, target: str) -> messages.ScoreResponse:
        request = messages.ScoreRequest(source_text=source, target_text=target)
        response: messages.ScoreResponse = await server.stub.Score(request)
        return response

    clean = await score("abc", "AA B")
    assert (await score("\tabc\n", "\ufeffAA\u00a0\u200b B\n")).log_prob == clean.log_prob
    source, target = (await score("ab\x9f?", "AA \u202eZZ ZZ")).warnings
    assert "symbols of the source ('?')" in source and "symbols of the target ('ZZ')" in target
    tokens = messages.Tokens(tokens=["<unk>"])
    assert not (await server.stub.Score(messages.ScoreRequest(source_text="ab", target_tokens=tokens))).warnings


async def test_hypotheses_are_distinct_by_text_in_process() -> None:
    model = attendant.load(ROOT / "models" / "normalize-numbers-en")
    for text in ("1,204", "one hundred five", "21st"):
        answer = model.generate(text, beam_size=8, num_hypotheses=8)
        texts = [hypothesis.text for hypothesis in answer.hypotheses]
        assert len(set(texts)) == len(texts) == 8
        scores = [hypothesis.score for hypothesis in answer.hypotheses]
        assert scores == sorted(scores, reverse=True)
