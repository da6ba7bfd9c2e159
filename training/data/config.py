"""The `[data]` and `[batches]` tables of a recipe."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from attendant.runtime.errors import UserError
from attendant.training.table import Count, Share, Table

Split = Literal["train", "validation", "test"]
FetcherName = Literal[
    "cmudict",
    "cmudict-stress",
    "copy",
    "dates",
    "debdocs-en-fr",
    "debdocs-en-fr-prose",
    "debdocs-en-fr-sentences",
    "debdocs-en-fr-varied",
    "debian-synopses",
    "ipa-lexicons",
    "messages-en-fr",
    "numbers",
    "backwards",
    "reverse",
]
WITH_COLUMNS: Final = re.compile(r"(.+)\[([^,\]]+),([^,\]]+)\]")  # FILE[COLUMN,COLUMN].
SharedSources = Literal["keep", "drop_from_train", "drop_from_held_out"]


FILES_FORMS: Final = "give either FILE, or [FILE, ...], or {source = FILE, target = FILE}"

Names = tuple[str, ...]
Columns = tuple[str, str] | tuple[int, int]


class SplitShares(Table):
    """`data.split`: shares of the distinct sources of `data.train` that are held out, chosen by a hash of the source.

    Attributes:
        validation: for validation; 0: `data.validation` names files.
        test: for the test; 0: `data.test` names files, or there is no test split.
    """

    validation: Share = 0.0
    test: Share = 0.0

    @model_validator(mode="after")
    def something_is_trained_on(self) -> Self:
        if not 0.0 < self.validation + self.test < 1.0:
            raise ValueError(
                f"validation = {self.validation:g} and test = {self.test:g} must be above 0 and below 1 together, e.g. "
                "{validation = 0.05, test = 0.05}"
            )
        return self


def checked_columns(value: Any) -> Any:
    """Returns columns as a tuple; None stays. Raises ValueError: they are not two names or two numbers."""
    if value is None:
        return None
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and value[0] != value[1]
    names = is_pair and all(isinstance(each, str) and each for each in value)
    numbers = is_pair and all(
        isinstance(each, int) and not isinstance(each, bool) and 0 < each < 2**31 for each in value
    )
    if not (names or numbers):
        raise ValueError('must be the two names of a header row, e.g. ["en", "fr"], or two numbers from 1, e.g. [1, 3]')
    return tuple(value)


class CorpusFiles(Table):
    """The files of the pairs of one split: files of pairs, or pairs of files whose lines correspond.

    A recipe may write `train = "pairs.tsv"` for `train = {pairs = ["pairs.tsv"]}`, and `train = ["a.tsv", "b.jsonl"]`.
    A file of pairs is a TSV (source, tab, target), a .csv or a .jsonl; any may be compressed by gzip, xz or bzip2.
    Relative paths start at the working directory, or at the recipe's folder for files that are not there.

    Attributes:
        pairs: files of pairs; several are read one after the other.
        source, target: files of texts, one per line. The lines of the first source file correspond to those of the
            first target file, and so on.
        columns: the columns of `pairs` that are source and target; if None, as `data.columns`.
    """

    pairs: Names | None = None
    source: Names | None = None
    target: Names | None = None
    columns: Columns | None = None

    @model_validator(mode="before")
    @classmethod
    def names_are_lists_of_pairs(cls, value: Any) -> Any:
        if isinstance(value, str | list | tuple):
            value = {"pairs": value}
        if isinstance(value, CorpusFiles):
            return value
        if not isinstance(value, dict):
            # pydantic would ask for a table, which is the rarest form.
            raise ValueError(FILES_FORMS)
        # `tsv` is the former name of `pairs`.
        renamed = {"pairs" if key == "tsv" and "pairs" not in value else key: each for key, each in value.items()}
        return {
            key: (each,) if isinstance(each, str) and key in ("pairs", "source", "target") else each
            for key, each in renamed.items()
        }

    columns_are_two = field_validator("columns", mode="before")(checked_columns)

    @model_validator(mode="after")
    def pairs_or_two_sides(self) -> Self:
        sides = (bool(self.pairs), bool(self.source), bool(self.target))
        if sides not in ((True, False, False), (False, True, True)):
            raise ValueError(FILES_FORMS)
        if "" in (self.pairs or ()) + (self.source or ()) + (self.target or ()):
            raise ValueError("the name of a file is empty")
        if self.source and self.target and len(self.source) != len(self.target):
            raise ValueError(
                f"{len(self.source)} files of sources, {len(self.target)} of targets: they must correspond"
            )
        if self.source and self.columns is not None:
            raise ValueError("columns are of files of pairs, and these have a text a line: leave columns out")
        return self

    @classmethod
    def named(cls, text: str) -> "CorpusFiles":
        """Returns the files that an option of a command names.

        Args:
            text: FILE; FILE[COLUMN,COLUMN] with two names or numbers; SOURCE,TARGET.

        Raises:
            UserError: the columns are not two.
        """
        if Path(text).exists():
            return cls(pairs=(text,))
        if chosen := WITH_COLUMNS.fullmatch(text):
            name, *parts = (part.strip() for part in chosen.groups())
            try:
                return cls(pairs=(name,), columns=checked_columns([int(p) if p.isdecimal() else p for p in parts]))
            except ValueError as error:
                raise UserError(f"{text}: {error}") from None
        source, comma, target = text.partition(",")
        return cls(source=(source,), target=(target,)) if comma else cls(pairs=(text,))

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(Path(name) for names in (self.pairs, self.source, self.target) for name in names or ())

    def __str__(self) -> str:
        return " + ".join(map(str, self.paths))


class Part(Table):
    """One of the splits that a corpus is divided into."""

    name: Split
    shares: SplitShares


class SplitFiles(CorpusFiles):
    """The files of one split, and how the recipe reads them.

    Attributes:
        drop_empty: see DataConfig.
        part: the part of the files that is this split; if None, all of them.
    """

    drop_empty: bool = False
    part: Part | None = None

    def reading(self) -> dict[str, Any]:
        """Returns the options that decide which pairs of the files are read; empty if all are."""
        fields = self.model_dump(mode="json", include={"columns", "drop_empty", "part"})
        return {name: value for name, value in fields.items() if value}

    def __str__(self) -> str:
        files = super().__str__()
        return files if self.part is None else f"{files} ({self.part.name} part)"


class DataConfig(Table):
    """`[data]`.

    Attributes:
        fetch: the fetcher that builds the data if they are missing. If None, the files are yours.
        directory: folder for the fetcher's data. If None, `data/<fetch>`.
        train: the training split. With a fetcher, the default is `<directory>/train.tsv`, and likewise for the other
            splits.
        validation: held out for early stopping.
        test: held out for the final evaluation; if None, there is no test split.
        columns: the columns of source and target: two names of a header row or keys of JSONL, e.g. ["en", "fr"], or two
            numbers from 1, e.g. [1, 3]. If None, a file has two columns and no header row (JSONL: the keys "source" and
            "target"). If the files of a split differ, set its own: `{pairs = FILE, columns = [...]}`.
        drop_empty: leaves out pairs with an empty side, and counts them. If false, they are refused.
        split: holds out shares of the distinct sources of `train`, e.g. {validation = 0.05, test = 0.05}. A hash of the
            source, independent of case, decides, so a source is never in two splits and stays in its split when pairs
            are added. If None, `validation` and `test` name files.
        allow_unknown_targets: trains even if more than half of the tokens of validation's targets are unknown.
        max_source_tokens: pairs with a longer source are left out of the training split (the run counts them) and of
            validation's loss. Also the served model's limit. Doesn't count EOS.
        max_target_tokens: the same for targets; validation and evaluation cut their outputs at this length.
        max_source_words: pairs with more words and punctuation marks in their source are left out of the training split
            and of validation's loss. If None, there is no limit. For experiments about length: it does not depend on
            the tokenizer, and limits neither the texts that are decoded to measure the model nor those that it serves.
        max_length_ratio: pairs are left out of the training split and of validation's loss if one side has more than
            this many times the tokens of the other. If None, there is no limit. Doesn't count EOS. The longest target
            that is left, for its source, decides the served model's default maximum length: a bad pair makes it longer.
        drop_duplicates: leaves out training pairs that are equal to an earlier one. Duplicates are always counted.
        shared_sources: treatment of sources that are in the training split and also in validation or test (compared as
            written in the files). "keep": only count them; "drop_from_train": leave those pairs out of the training
            split; "drop_from_held_out": leave those examples out of validation and test.
        cache: a directory in which several runs share tokenized training splits, by a digest of everything that they
            depend on. If None, each run has its own.
    """

    fetch: FetcherName | None = None
    directory: str | None = None
    train: CorpusFiles | None = None
    validation: CorpusFiles | None = None
    test: CorpusFiles | None = None
    columns: Columns | None = None
    drop_empty: bool = False
    split: SplitShares | None = None
    allow_unknown_targets: bool = False
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

    columns_are_two = field_validator("columns", mode="before")(checked_columns)

    @model_validator(mode="after")
    def training_and_validation_are_needed(self) -> Self:
        shares = self.split or SplitShares.model_construct()
        for split in ("validation", "test"):
            share = getattr(shares, split)
            if share and self.fetch is not None:
                raise ValueError(
                    f'split.{split} = {share:g}, and fetch = "{self.fetch}" brings {split} files: leave split out'
                )
            if share and getattr(self, split) is not None:
                raise ValueError(f"split.{split} = {share:g}, and {split} names files: leave one of them out")
        if self.train is None:
            raise ValueError("needs train = FILE, or fetch = NAME")
        if self.validation is None and not shares.validation:
            raise ValueError("needs validation = FILE, or split = {validation = 0.05}, or fetch = NAME")
        if self.directory is not None and self.fetch is None:
            raise ValueError("directory is where a fetcher builds its files: name the fetcher, or leave it out")
        return self

    def files(self, split: Split) -> SplitFiles | None:
        """Returns the files of a split, and how they are read; if None, there is no such split."""
        named: CorpusFiles | None = getattr(self, split)
        part = None
        if self.split is not None and (split == "train" or (named is None and getattr(self.split, split))):
            named, part = self.train, Part(name=split, shares=self.split)
        if named is None:
            return None
        columns = named.columns or (self.columns if named.pairs else None)
        return SplitFiles(**dict(named) | {"columns": columns}, drop_empty=self.drop_empty, part=part)

    def corpus_folder(self, run: Path) -> Path:
        """Returns the folder of the tokenized training split of the run at `run`."""
        return run / "corpus" if self.cache is None else Path(self.cache)


class BatchConfig(Table):
    """`[batches]`.

    Attributes:
        max_tokens: source and target positions of a batch, padding and EOS included.
    """

    max_tokens: Count = 4096
