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
    "numbers",
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
        fetch: the fetcher that builds the data if they are missing; None: the files are yours.
        directory: where the fetcher builds them; None: `data/<fetch>`.
        train: the training split; with a fetcher, `<directory>/train.tsv` if none is named. The other splits likewise.
        validation: held out for early stopping.
        test: held out for the final evaluation; None: there is no test split.
        max_source_tokens: pairs with a longer source are left out of the training split (the run counts them); also the
            served model's limit. Doesn't count EOS.
        max_target_tokens: the same for targets; validation and evaluation cut their outputs at this length.
        max_source_words: pairs with more words and punctuation marks in their source are left out of the training
            split; None: none are. For experiments about length: it does not depend on the tokenizer, and limits neither
            the texts on which the model is measured nor those that it serves.
        max_length_ratio: pairs are left out of the training split if one side has more than this many times the tokens
            of the other; None: none are. Doesn't count EOS.
        drop_duplicates: leaves out training pairs that are equal to an earlier one. They are counted in any case.
        shared_sources: how to treat sources that are in the training split and also in validation or test (compared as
            written in the files). "keep": only count them; "drop_from_train": leave those pairs out of the training
            split; "drop_from_held_out": leave those examples out of validation and test.
        cache: a directory in which several runs share tokenized training splits, found by a digest of all that they
            depend on; None: each run has its own.
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
