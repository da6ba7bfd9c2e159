"""Reading pairs: every bad row is named by file and line."""

import gzip
import re
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.data.pairs import Example, Pair, group_references, read_pairs, sample_evenly


def tsv(tmp_path: Path, content: bytes, name: str = "pairs.tsv") -> CorpusFiles:
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return CorpusFiles(tsv=str(tmp_path / name))


def parallel(tmp_path: Path, source: bytes, target: bytes) -> CorpusFiles:
    (tmp_path / "a.en").write_bytes(source)
    (tmp_path / "a.fr").write_bytes(target)
    return CorpusFiles(source=str(tmp_path / "a.en"), target=str(tmp_path / "a.fr"))


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_reads_tsv_plain_and_gzip(tmp_path: Path, name: str) -> None:
    content = "\ufeffhello \tbonjour\r\nit\u2028is\tc'est\u0085ça".encode()
    assert list(read_pairs(tsv(tmp_path, content, name))) == [
        Pair("hello", "bonjour"),
        Pair("it\u2028is", "c'est\u0085ça"),
    ]


def test_reads_two_parallel_files(tmp_path: Path) -> None:
    assert list(read_pairs(parallel(tmp_path, b"one\ttab\ntwo\n", b"un\ndeux\n"))) == [
        Pair("one\ttab", "un"),
        Pair("two", "deux"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\tb\nonly\n", "pairs.tsv:2: 1 column,"),
        (b"a\tb\nc\td\te\n", "pairs.tsv:2: 3 columns"),
        (b"a\tb\n\n", "pairs.tsv:2: 1 column,"),
        (b"a\tb\nc\td\n \te\n", "pairs.tsv:3: the source is empty"),
        (b"a\t  \n", "pairs.tsv:1: the target is empty"),
        (b"a\tb\nab\xff\tc\n", "pairs.tsv:2: byte 3 of the line is not UTF-8"),
    ],
)
def test_names_file_and_line_of_a_bad_row(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(UserError) as caught:
        list(read_pairs(tsv(tmp_path, content)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (b"a\nb\n", b"x\n", "a.fr ends after line 1, "),
        (b"a\n", b"x\ny\n", "a.en ends after line 1, "),
        (b"a\nb\n", b"x\n\n", "a.fr:2: the line is empty"),
        (b"a\n\xc3\n", b"x\ny\n", "a.en:2: byte 1 of the line is not UTF-8"),
    ],
)
def test_names_the_file_where_parallel_files_part(tmp_path: Path, source: bytes, target: bytes, said: str) -> None:
    with pytest.raises(UserError) as caught:
        list(read_pairs(parallel(tmp_path, source, target)))
    assert said in str(caught.value)


def test_says_when_a_file_is_missing_or_no_gzip(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        list(read_pairs(CorpusFiles(tsv=str(tmp_path / "none.tsv"))))
    with pytest.raises(UserError, match=re.escape(f"none.tsv: there is no such file in {Path.cwd()}, where relative")):
        list(read_pairs(CorpusFiles(tsv="none.tsv")))
    (tmp_path / "broken.tsv.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="can't be read"):
        list(read_pairs(CorpusFiles(tsv=str(tmp_path / "broken.tsv.gz"))))
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" * 9999)[:-20])
    with pytest.raises(UserError, match="can't be read"):
        list(read_pairs(CorpusFiles(tsv=str(tmp_path / "cut.tsv.gz"))))


def test_repeated_sources_are_one_example_with_several_references() -> None:
    pairs = [Pair("b", "1"), Pair("a", "2"), Pair("b", "3"), Pair("b", "1")]
    assert group_references(pairs) == [Example("b", ("1", "3")), Example("a", ("2",))]


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    examples = [Example(str(number), ("x",)) for number in range(10)]
    assert [example.source for example in sample_evenly(examples, 4)] == ["0", "2", "5", "7"]
    assert sample_evenly(examples, None) == sample_evenly(examples, 99) == examples


@pytest.mark.parametrize("given", [{}, {"source": "a"}, {"tsv": "a", "target": "b"}])
def test_a_part_is_one_tsv_or_two_files(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give either tsv"):
        CorpusFiles(**given)
