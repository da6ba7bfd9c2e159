"""Tests of reading pairs: formats, compression, splits, and errors that name the file and line of each bad row."""

import bz2
import gzip
import lzma
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, DataConfig, SplitFiles
from attendant.training.data.pairs import (
    Example,
    Pair,
    PairReader,
    group_references,
    no_pairs,
    read_pairs,
    sample_evenly,
)


def refusal_of(files: CorpusFiles) -> str:
    """Returns the error of refused files, which must be one line."""
    with pytest.raises(UserError) as caught:
        list(read_pairs(files))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tsv(tmp_path: Path, content: bytes) -> CorpusFiles:
    (tmp_path / "pairs.tsv").write_bytes(content)
    return CorpusFiles(tsv=str(tmp_path / "pairs.tsv"))


def parallel(tmp_path: Path, source: bytes, target: bytes) -> CorpusFiles:
    (tmp_path / "a.en").write_bytes(source)
    (tmp_path / "a.fr").write_bytes(target)
    return CorpusFiles(source=str(tmp_path / "a.en"), target=str(tmp_path / "a.fr"))


def test_tsv_is_read(tmp_path: Path) -> None:
    content = "\ufeffhello \tbonjour\r\n\ufeffhello\tbonjour\r\nit\u2028is\tc'est\u0085ça".encode()
    assert list(read_pairs(tsv(tmp_path, content))) == [
        Pair("hello", "bonjour"),
        Pair("hello", "bonjour"),
        Pair("it\u2028is", "c'est\u0085ça"),
    ]


def test_parallel_files_whose_lines_end_in_carriage_returns_are_refused(tmp_path: Path) -> None:
    message = "a.en: its lines end in carriage returns alone"
    assert message in refusal_of(parallel(tmp_path, b"one\rtwo\r", b"un\rdeux\r"))
    assert list(read_pairs(parallel(tmp_path, b"one\rmore\ntwo\n", b"un\ndeux"))) == [
        Pair("one\rmore", "un"),
        Pair("two", "deux"),
    ]


def test_two_parallel_files_are_read(tmp_path: Path) -> None:
    assert list(read_pairs(parallel(tmp_path, b"one\ttab\ntwo\n", b"un\ndeux\n"))) == [
        Pair("one\ttab", "un"),
        Pair("two", "deux"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nonly\n", "pairs.tsv:2: 1 column: "),
        (b"a\tb\nc\td\te\n", "pairs.tsv:2: 3 columns"),
        (b"a\tb\n\n", "pairs.tsv:2: both sides are empty"),
        (b"a\tb\nc\td\n \te\n", "pairs.tsv:3: the source is empty"),
        (b"a\tb\nc\0\td\n", "pairs.tsv:2: character 2 is a NUL"),
        (b"a\tb\rc\td\r", "pairs.tsv: its lines end in carriage returns alone: convert them to line feeds"),
        (b"a\tb\nc\td\re\tf\n", "pairs.tsv:2: 3 columns; a carriage return does not end a line"),
        (b"a,b\n", "commas separate columns in files named .csv"),
        (b'{"en": "a"}\n', "JSON is read from files named .jsonl"),
        (b"en\tfr\na\tb\n", "pairs.tsv:1: 'en' and 'fr' look like the names of columns: set data.columns = "),
        ("a\tb\n".encode("utf-16"), "pairs.tsv is UTF-16: convert it"),
        ("a\tb\n".encode("utf-32"), "pairs.tsv is UTF-32: convert it"),
        ("a\tb\n".encode("utf-16-le"), "control characters as UTF-16 has: convert it, e.g. with iconv -f UTF-16LE"),
        (
            "мир\tмонде\n".encode("utf-16-be"),
            "control characters as UTF-16 has: convert it, e.g. with iconv -f UTF-16BE",
        ),
        (b"PK\x03\x04", "pairs.tsv is a zip archive or a spreadsheet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", "pairs.tsv is a spreadsheet"),
        (b"7z\xbc\xaf\x27\x1c\0", "pairs.tsv is an archive"),
        (b"a\t  \n", "pairs.tsv:1: the target is empty"),
        (b"a\tb\nab\xff\tc\n", "pairs.tsv:2: byte 3 of the line is not UTF-8"),
    ],
)
def test_an_error_names_file_and_line_of_a_bad_row(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal_of(tsv(tmp_path, content))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\n", b"x\n", "a.fr ends after line 1, "),
        (b"a\n", b"x\ny\n", "a.en ends after line 1, "),
        (b"a\nb\n", b"x\n\n", "a.fr:2: the target is empty"),
        (b"a\n\xc3\n", b"x\ny\n", "a.en:2: byte 1 of the line is not UTF-8"),
    ],
)
def test_an_error_names_the_parallel_file_that_does_not_match(
    tmp_path: Path, source: bytes, target: bytes, message: str
) -> None:
    assert message in refusal_of(parallel(tmp_path, source, target))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in refusal_of(CorpusFiles(tsv=str(tmp_path / "none.tsv")))
    expected = f"none.tsv: there is no such file in {Path.cwd()}, where relative"
    assert expected in refusal_of(CorpusFiles(tsv="none.tsv"))


def test_repeated_sources_are_one_example_with_several_references() -> None:
    pairs = [Pair("b", "1"), Pair("a", "2"), Pair("b", "3"), Pair("b", "1")]
    assert group_references(pairs) == [Example("b", ("1", "3")), Example("a", ("2",))]


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    examples = [Example(str(number), ("x",)) for number in range(10)]
    assert [example.source for example in sample_evenly(examples, 4)] == ["0", "2", "5", "7"]
    assert sample_evenly(examples, None) == sample_evenly(examples, 99) == examples


@pytest.mark.parametrize(
    "inputs",
    [
        {}, {"source": "a"}, {"tsv": "a", "target": "b"}, {"pairs": []}, {"source": ["a", "b"], "target": "c"},
        {"source": "a", "target": "b", "columns": [1, 2]}, {"pairs": "a", "columns": ["en"]},
        {"pairs": "a", "columns": [0, 1]}, {"pairs": "a", "columns": ["en", 2]}, {"pairs": "a", "columns": [1, 1]},
    ],
)  # fmt: skip
def test_a_split_is_files_of_pairs_or_two_sides(inputs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give either FILE|must correspond|leave columns out|must be the two names"):
        CorpusFiles.model_validate(inputs)


@pytest.mark.parametrize(
    "compress", [gzip.compress, lzma.compress, bz2.compress, bytes], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz", "pairs"])
def test_compression_is_read_from_the_content(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / name).write_bytes(compress(b"a\tb\n" * 3))
    assert len(list(read_pairs(CorpusFiles(pairs=(str(tmp_path / name),))))) == 3
    (tmp_path / name).write_bytes(compress(b""))
    assert list(read_pairs(CorpusFiles(pairs=(str(tmp_path / name),)))) == []


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "cut").write_bytes(compress(b"a\tb\n" * 9999)[:-20])
    assert "cut: can't be read: Compressed file ended" in refusal_of(CorpusFiles(pairs=(str(tmp_path / "cut"),)))


def test_an_archive_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    with tarfile.open(tmp_path / "pairs.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "pairs.tsv")
    assert "is a tar archive: unpack it" in refusal_of(CorpusFiles(pairs=(str(tmp_path / "pairs.tar.gz"),)))


def test_all_bad_lines_are_counted_and_the_first_ten_numbered(tmp_path: Path) -> None:
    files = tsv(tmp_path, b"a\tb\n" + b"\t\n" * 7 + b"a\xff\tb\n" * 2 + b"one\n" * 5)
    with pytest.raises(UserError) as caught:
        list(read_pairs(files))
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("14 bad lines: ") and "data.drop_empty = true" in first and "iconv" in first
    assert [int(re.findall(r":(\d+): ", line)[0]) for line in lines[:-1]] == list(range(2, 12))
    assert "and 4 more" in lines[-1]


def test_empty_pairs_are_dropped_and_counted(tmp_path: Path) -> None:
    two = {"source": str(tmp_path / "a.en"), "target": str(tmp_path / "a.fr")}
    parallel(tmp_path, b"a\n\nc\n  \n", b"x\ny\n\n\n")
    tsv(tmp_path, b"a\tx\n\n\t\nb\t\n")
    for files in (two, {"pairs": str(tmp_path / "pairs.tsv")}):
        reader = PairReader(SplitFiles.model_validate(files | {"drop_empty": True}))
        for _ in range(2):
            assert list(reader) == [Pair("a", "x")] and reader.num_empty == 3
    # Each empty pair is counted in one split.
    split = {"validation": 0.4, "test": 0.4}
    config = DataConfig.model_validate({"train": str(tmp_path / "pairs.tsv"), "split": split, "drop_empty": True})
    readers = [PairReader(config.files(name)) for name in ("train", "validation", "test")]
    assert [pair for reader in readers for pair in reader] == [Pair("a", "x")]
    assert sum(reader.num_empty for reader in readers) == 3


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.tsv", "xx\tfr\ten\n1\tb\ta\n", ("en", "fr")),
        ("a.tsv", "\ufeffen\tfr\r\na\tb\r\n", ("en", "fr")),
        ("a.tsv", "a\tb\tcc-by\n", (1, 2)),
        ("a.tsv", "b\ta\n", (2, 1)),
        ("a.tsv", '"a"\t"b"\n', None),
        ("a.csv", "a,b\n", None),
        ("a.csv", "a;b\n", None),
        ("a.csv", "\ufeffsep=|\r\na|b\r\n", None),
        ("a.csv", '"sep=;"\nen;fr\na;b\n', ("en", "fr")),
        ("a.csv", '"a", "b"\n', None),
        ("a.tsv", "a\tb\t\n", None),
        ("a.csv", 'id,en,fr\n7,"a",b\n', ("en", "fr")),
        ("a.CSV", "b,x,a\n", (3, 1)),
        ("a.jsonl", '{"source": "a", "target": "b", "id": 3}\n', None),
        ("a.jsonl.gz", '{"en": "a", "fr": "b"}\n', ("en", "fr")),
        ("a.ndjson", '{"translation": {"en": "a", "fr": "b"}}\n', ("translation.en", "translation.fr")),
    ],
)
def test_every_format_is_read_by_its_columns(
    tmp_path: Path, name: str, content: str, columns: tuple[str, str] | tuple[int, int] | None
) -> None:
    (tmp_path / name).write_text(content, newline="")
    assert list(read_pairs(CorpusFiles(pairs=(str(tmp_path / name),), columns=columns))) == [Pair("a", "b")]


def test_quotes_are_text_unless_every_field_has_them(tmp_path: Path) -> None:
    plain = tsv(tmp_path, b'say "a"\t"b"\n"c"\t"d ""e""" f\n')
    assert [pair.source for pair in read_pairs(plain)] == ['say "a"', '"c"']
    reader = PairReader(tsv(tmp_path, b'"a"\t"b ""c"""\n' * 120 + b"d\te\n"))
    assert set(reader) == {Pair("a", 'b "c"'), Pair("d", "e")}
    assert [note.split(": ")[1] for note in reader.notes] == ["every field is in quotes, which are taken off"]


def test_a_field_of_csv_may_hold_commas_quotes_line_feeds_and_megabytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'"x, y","z ""q"""\n"two\nlines",{"w" * 2**20}\n\n')
    with pytest.raises(UserError, match=r"a\.csv:4: both sides are empty"):
        list(read_pairs(CorpusFiles(pairs=(str(tmp_path / "a.csv"),))))
    result = list(read_pairs(SplitFiles(pairs=(str(tmp_path / "a.csv"),), drop_empty=True)))
    assert result == [Pair("x, y", 'z "q"'), Pair("two\nlines", "w" * 2**20)]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.csv", "en,fr\na,b\n", None, "look like the names of columns"),
        ("a.csv", "id,en,fr\n1,a,b\n", None, "or to two others of 'id', 'en', 'fr' (in an option: 'a.csv[id,en]')"),
        ("a.csv", "id,en,fr\n1,a,b\n", (3, 2), 'set data.columns = ["fr", "en"]'),
        ("a.csv", "a,b\nc,d,e\n", None, "a.csv:2: 3 columns"),
        ("a.csv", 'a,"b\n', None, "a.csv:1: unexpected end of data: "),
        ("a.csv", "sep=;\na;b\nc;d;e\n", None, "a.csv:3: 3 columns"),
        ("a.csv", "a,b\rc,d\r", None, "a.csv: its lines end in carriage returns alone"),
        ("a.jsonl", '{"source": "a", "target": "b"}\r' * 2, None, "a.jsonl: its lines end in carriage returns alone"),
        ("a.csv", "a;b\nc;d\re\n", None, "a.csv:2: a carriage return outside of quotes"),
        ("a.csv", 'a,b\nc,"d\ne,f\n', None, "a.csv:3: unexpected end of data; the row begins in line 2: "),
        ("a.tsv", "en\tfr\na\tb\n", ("en", "de"), "'de', and the header row has 'en', 'fr'"),
        ("a.tsv", "en\ten\na\tb\n", ("en", "fr"), "'en', and the header row names it twice"),
        ("a.tsv", "a\tb\n", (1, 3), "a.tsv:1: 2 columns, and 3 are needed"),
        ("a.tsv", "en\tfr\n1\ta\tb\n", ("en", "fr"), "a.tsv:2: 3 columns, and 2 are needed"),
        ("a.csv", "en,f\0r\na,b\n", ("en", "fr"), "a.csv:1: character 5 is a NUL"),
        ("a.jsonl", "[1]\n", None, "a.jsonl:1: not a JSON object"),
        ("a.jsonl", "{\n", None, "a.jsonl:1: not JSON: "),
        ("a.jsonl", "1" * 5000, None, "a.jsonl:1: not JSON: a number of too many digits"),
        ("a.jsonl", "[" * 100_000, None, "a.jsonl:1: not JSON: too deeply nested"),
        ("a.jsonl", '{"en": "a"}\n', ("en", "fr"), "a.jsonl:1: there is no 'fr' among 'en'"),
        ("a.jsonl", '{"en": "a", "fr": 3}\n', ("en", "fr"), "'fr' is 3, not a text"),
        ("a.jsonl", '{"en": "\\ud800", "fr": "x"}\n', ("en", "fr"), "'en' has half a surrogate pair"),
        ("a.jsonl", '{"en": "a"}\n', (1, 2), "JSONL has names"),
        ("a.json", '[\n{"en": "a"}]', None, "is a JSON array: write an object a line"),
        ("a.json", '[{"en": "a"}]', None, "is a JSON array: write an object a line"),
    ],
)
def test_invalid_content_of_a_format_is_refused(
    tmp_path: Path, name: str, content: str, columns: tuple[str, str] | tuple[int, int] | None, message: str
) -> None:
    (tmp_path / name).write_text(content)
    assert message in refusal_of(CorpusFiles(pairs=(str(tmp_path / name),), columns=columns))


def test_the_delimiter_of_a_csv_cuts_all_rows_alike(tmp_path: Path) -> None:
    for counts in ((1, 2, 3), (2, 2, 2)):
        (tmp_path / "a.csv").write_text("".join(f"a{', b' * count};c\n" for count in counts))
        assert [pair.target for pair in read_pairs(CorpusFiles(pairs=(str(tmp_path / "a.csv"),)))] == ["c"] * 3
    (tmp_path / "a.csv").write_text('"a; b", "c; d, e"\n"f; g", "h; i, j"\n')
    assert list(read_pairs(CorpusFiles(pairs=(str(tmp_path / "a.csv"),)))) == [
        Pair("a; b", "c; d, e"),
        Pair("f; g", "h; i, j"),
    ]


def test_lines_of_a_csv_are_counted_with_those_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n\0,c\nd,e,f\n")
    with pytest.raises(UserError, match=r"(?s)a\.csv:2: character 1 is a NUL.*a\.csv:3: 3 columns"):
        list(read_pairs(CorpusFiles(pairs=(str(tmp_path / "a.csv"),))))


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n")
    (tmp_path / "b.csv").write_text("c,d\n")
    names = [str(tmp_path / "a.tsv"), str(tmp_path / "b.csv")]
    files = CorpusFiles.model_validate(names)
    assert list(read_pairs(files)) == [Pair("a", "b"), Pair("c", "d")]
    both = CorpusFiles.model_validate({"source": names, "target": names})
    assert list(read_pairs(both)) == [Pair("a\tb", "a\tb"), Pair("c,d", "c,d")]


def test_an_option_names_files_with_their_columns(tmp_path: Path) -> None:
    assert CorpusFiles.named("a.csv[en, fr]") == CorpusFiles(pairs=("a.csv",), columns=("en", "fr"))
    assert CorpusFiles.named("a.csv[1,3]") == CorpusFiles(pairs=("a.csv",), columns=(1, 3))
    assert CorpusFiles.named("a.en,a.fr") == CorpusFiles(source=("a.en",), target=("a.fr",))
    awkward = tmp_path / "a[b,c]"
    awkward.touch()
    assert CorpusFiles.named(str(awkward)).columns is None
    with pytest.raises(UserError, match="must be the two names"):
        CorpusFiles.named("a.csv[1,fr]")


def split_config(**shares: float) -> DataConfig:
    return DataConfig.model_validate({"train": "pairs.tsv", "split": shares})


def test_a_source_is_in_one_split_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = split_config(validation=0.1, test=0.2)
    (tmp_path / "pairs.tsv").write_text("".join(f"W{number % 500}\t{number}\n" for number in range(1000)))
    splits = {split: list(read_pairs(config.files(split))) for split in ("train", "validation", "test")}
    sources = {split: {pair.source for pair in pairs} for split, pairs in splits.items()}
    assert sum(map(len, splits.values())) == 1000 and sum(map(len, sources.values())) == 500
    assert 25 < len(sources["validation"]) < 80 and 60 < len(sources["test"]) < 140
    (tmp_path / "pairs.tsv").write_text("".join(f"w{number}\tx\n" for number in range(900)))
    again = {pair.source.upper() for pair in read_pairs(config.files("test"))}
    assert again & {f"W{number}" for number in range(500)} == sources["test"]
    assert str(config.files("test")) == "pairs.tsv (test part)"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"train": "a"}, "needs validation = FILE, or split"),
        ({"train": "a", "split": {"test": 0.1}}, "needs validation = FILE, or split"),
        ({"train": "a", "validation": "b", "split": {"validation": 0.1}}, "leave one of them out"),
        ({"train": "a", "split": {"validation": 0.5, "test": 0.5}}, "must be above 0 and below 1 together"),
        ({"train": "a", "split": {"validation": 1.0}}, "less than 1"),
        ({"fetch": "copy", "split": {"test": 0.1}}, "leave split out"),
    ],
)
def test_splits_that_contradict_each_other_are_refused(inputs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DataConfig.model_validate(inputs)


def test_a_split_without_a_pair_names_the_field_to_raise(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    config = DataConfig.model_validate({"train": str(tmp_path / "pairs.tsv"), "split": {"validation": 1e-9}})
    files = config.files("validation")
    assert files is not None and list(read_pairs(files)) == []
    assert "raise data.split.validation = 1e-09, or give more pairs" in str(no_pairs(files))
    assert "lower the shares of data.split" in str(no_pairs(config.files("train")))
