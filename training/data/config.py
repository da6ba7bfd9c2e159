"""The `[data]` and `[batches]` tables of a recipe."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from attendant.training.table import Count, Table

Split = Literal["train", "validation", "test"]
FetcherName = Literal[
    "cmudict",
    "copy",
    "dates",
    "debdocs-en-fr",
    "debdocs-en-fr-prose",
    "debdocs-en-fr-sentences",
    "debian-synopses",
    "reverse",
]
SharedSources = Literal["keep", "drop_from_train", "drop_from_held_out"]


class CorpusFiles(Table):
    """Where the pairs of one split stand: one TSV file (source, tab, target), or two files whose lines correspond.

    A recipe may write `train = "pairs.tsv"` for `train = {tsv = "pairs.tsv"}`. A name that ends in `.gz` is gzip.
    Relative paths start at the working directory; what is not there may stand beside the recipe.
    """

    tsv: str | None = None
    source: str | None = None
    target: str | None = None

    @model_validator(mode="before")
    @classmethod
    def a_string_is_a_tsv_file(cls, value: Any) -> Any:
        return {"tsv": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def one_file_or_two(self) -> Self:
        given = (self.tsv is not None, self.source is not None, self.target is not None)
        if given not in ((True, False, False), (False, True, True)):
            raise ValueError("give either tsv = FILE, or source = FILE and target = FILE")
        return self

    @classmethod
    def named(cls, text: str) -> "CorpusFiles":
        """What an option of a command names: FILE.tsv, or SOURCE,TARGET."""
        source, comma, target = text.partition(",")
        return cls(source=source, target=target) if comma and not Path(text).exists() else cls(tsv=text)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(Path(name) for name in (self.tsv, self.source, self.target) if name is not None)

    def __str__(self) -> str:
        return " + ".join(map(str, self.paths))


class DataConfig(Table):
    """`[data]`.

    Attributes:
        fetch: the fetcher that builds the data where it is missing; None: the files are yours.
        directory: where it builds them; None: `data/<fetch>`.
        train: the training split; with a fetcher, `<directory>/train.tsv` where none is named. The others likewise.
        validation: held out for early stopping.
        test: held out for the final evaluation; None: there is none.
        max_source_tokens: longer pairs leave the training split (counted in the run); also the served model's limit.
            Doesn't count EOS.
        max_target_tokens: likewise; validation and evaluation cut their outputs there.
        max_source_words: pairs with more words and punctuation marks in their source leave the training split; None:
            none do. For experiments about length: it holds for any tokenizer alike, and limits neither what the model
            is measured on nor what it serves.
        max_length_ratio: pairs of which one side has more than so many times the tokens of the other leave the
            training split; None: none do. Doesn't count EOS.
        drop_duplicates: a training pair that is equal to an earlier one leaves. They are counted in any case.
        shared_sources: what becomes of sources that the training split shares with validation or test, compared as the
            files have them: "keep" (and count); "drop_from_train": the training split loses those pairs;
            "drop_from_held_out": validation and test lose those examples.
        cache: a directory for tokenized training splits, by the digest of all that made them, for several runs to
            share; None: each run has its own.
    """

    fetch: FetcherName | None = None
    directory: str | None = None
    train: CorpusFiles | None = None
    validation: CorpusFiles | None = None
    test: CorpusFiles | None = None
    max_source_tokens: Count = 100
    max_target_tokens: Count = 100
    max_source_words: Count | None = None
    max_length_ratio: Annotated[float, Field(ge=1.0)] | None = None
    drop_duplicates: bool = False
    shared_sources: SharedSources = "keep"
    cache: str | None = None

    @model_validator(mode="before")
    @classmethod
    def a_fetcher_names_its_files(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("fetch"), str):
            return value
        directory = value.get("directory") or f"data/{value['fetch']}"
        files = {split: f"{directory}/{split}.tsv" for split in ("train", "validation", "test")}
        return {"directory": directory} | files | value

    @model_validator(mode="after")
    def training_and_validation_are_needed(self) -> Self:
        for split in ("train", "validation"):
            if getattr(self, split) is None:
                raise ValueError(f"needs {split} = FILE, or fetch = NAME")
        if self.directory is not None and self.fetch is None:
            raise ValueError("directory is where a fetcher builds its files: name the fetcher, or leave it out")
        return self

    def files(self, split: Split) -> CorpusFiles | None:
        found: CorpusFiles | None = getattr(self, split)
        return found

    def corpus_folder(self, run: Path) -> Path:
        """Where the tokenized training split of the run at `run` is kept."""
        return run / "corpus" if self.cache is None else Path(self.cache)


class BatchConfig(Table):
    """`[batches]`.

    Attributes:
        max_tokens: source and target positions of a batch, padding and EOS included.
    """

    max_tokens: Count = 4096
