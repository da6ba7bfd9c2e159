"""Tests of recipes: each mistake is reported in one line with its remedy."""

import datetime
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from pydantic import BaseModel

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.recipe import Recipe, load_recipe, recipe_from, shipped_recipes
from attendant.training.recipe_choice import recipe_of_inputs

RECIPES = list(shipped_recipes().values())

SMALL = """
[data]
train = "train.tsv"
validation = {source = "v.en", target = "v.fr"}
[source]
tokenizer = "character"
[target]
tokenizer = "word"
[training]
max_epochs = 1
"""


def load(tmp_path: Path, text: str = SMALL, *overrides: str) -> Recipe:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, overrides)


def test_overrides_are_toml_values_or_bare_strings(tmp_path: Path) -> None:
    recipe = load(
        tmp_path, SMALL, "optimizer.learning_rate=3e-4", "model.cell=gru", "data.test=x.tsv", "seed = 7",
        'evaluation.metrics=["bleu", "chrf"]', 'source.normalize=["lowercase", "nfkc", "nfkc"]',
    )  # fmt: skip
    assert recipe.optimizer.learning_rate == 3e-4
    assert recipe.model.cell == "gru"
    assert recipe.data.test is not None and recipe.data.test.pairs == ("x.tsv",)
    assert recipe.seed == 7
    assert recipe.evaluation.metrics == ("bleu", "chrf")
    assert recipe.source.normalize == ("nfkc", "lowercase")


def test_a_table_of_overrides_changes_the_fields_that_it_names(tmp_path: Path) -> None:
    before = load(tmp_path, SMALL, "model.encoder.hidden_size=8", "data.drop_empty=true")
    by_text = load(tmp_path, SMALL, "model.encoder.hidden_size=8", "model={dropout=0.5, encoder={num_layers=2}}")
    assert (by_text.model.encoder.hidden_size, by_text.model.encoder.num_layers, by_text.model.dropout) == (8, 2, 0.5)
    changes = {"data": {"validation": {"pairs": ["other.tsv"]}}, "training": {"label_smoothing": 0.3}}
    recipe = load_recipe(tmp_path / "small.toml", changes)
    assert recipe.training.max_epochs == before.training.max_epochs and recipe.data.train == before.data.train
    assert recipe.data.validation == CorpusFiles(pairs=("other.tsv",)) and recipe.training.label_smoothing == 0.3
    assert load_recipe(tmp_path / "small.toml", {"training": {}}).training.max_epochs == 1
    shares = {"validation": None, "split": {"validation": 0.1, "test": 0.2}}
    split = load_recipe(tmp_path / "small.toml", {"data": shares, "data.split": {"test": 0.3}}).data.split
    assert split is not None and (split.validation, split.test) == (0.1, 0.3)


def test_overrides_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    load(tmp_path, SMALL)
    overrides = {"seed": np.int64(7), "model.dropout": np.float32(0.5), "data.drop_empty": np.bool_(True)}
    recipe = load_recipe(tmp_path / "small.toml", overrides)
    assert (recipe.seed, recipe.model.dropout, recipe.data.drop_empty) == (7, 0.5, True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hiden_size=3", "unknown key model.hiden_size; did you mean hidden_size?"),
        ("optimiser.kind=adam", "unknown key optimiser; did you mean optimizer?"),
        ("model.encoder.layers=2", "unknown key model.encoder.layers; did you mean num_layers?"),
        ("data.train.zip=x", "--set data.train.zip=x: train is a value, not a table"),
        ("max_epochs=3", "unknown key max_epochs; did you mean training.max_epochs?"),
        ("model.num_layers=2", "did you mean model.encoder.num_layers or model.decoder.num_layers?"),
        ("target.keep_spaces=true", 'keep_spaces = true means nothing to target.tokenizer = "word"'),
        ("data.validation.pair=1", "unknown key data.validation.pair; did you mean pairs?"),
        ("optimizer.kind=adamm", "optimizer.kind = 'adamm': must be one of adam, adamw, adadelta, sgd"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate = -1: must be greater than 0"),
        ("seed=9223372036854775808", "small.toml: seed = 9223372036854775808: must be less than 9223372036854775808"),
        ("source.vocabulary_size=2147483648", "2147483648: must be less than or equal to 2147483647"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate = nan: must be a finite number"),
        ("data.fetch=bible", "data.fetch = 'bible': must be one of cmudict, cmudict-stress, copy, dates"),
        ('evaluation.metrics=["zz"]', "small.toml: evaluation.metrics.0 = 'zz': must be one of wer"),
        ("evaluation.length_edges=[4,4]", "evaluation.length_edges = [4, 4]: must be whole numbers that rise"),
        ("evaluation.metrics=bleu", "evaluation.metrics = 'bleu': must be a list, e.g. ["),
        ("data.split=0.1", "data.split = 0.1: must be a table"),
        ("data.train=3", "data.train: give either FILE, or [FILE, ...], or {source = FILE, target = FILE}"),
        ("data.test=true", "data.test: give either FILE, or"),
        ("data.train=''", "data.train: the name of a file is empty"),
        ("data.validation={source='a',target=''}", "data.validation: the name of a file is empty"),
        ("data.drop_empty=1", "data.drop_empty = 1: must be true or false"),
        ("source.tokenizer=3", "source.tokenizer = 3: must be one of character, word, bpe, unigram, or a file (.json"),
        ("source.tokenizer=words", "source.tokenizer = 'words': must be one of character, word, bpe, unigram, or a"),
        ("optimizer.betas=[0.9]", "optimizer.betas = [0.9]: must be two numbers, e.g. [0.9, 0.999]"),
        ("optimizer.betas=[0.9, 0.9, 0.9]", "optimizer.betas = [0.9, 0.9, 0.9]: must be two numbers, e.g."),
        ("data.columns=[1]", "data.columns = [1]: must be the two names of a header row"),
        (f"description={'x' * 201}", "must be a text of at most 200 characters"),
        ("training.dropot=0.1", "unknown key training.dropot; did you mean model.dropout?"),
        ("training.epoch=3", "unknown key training.epoch; did you mean max_epochs?"),
        ("data.val=v.tsv", "unknown key data.val; did you mean validation?"),
        ("data.dev=v.tsv", "unknown key data.dev; known here: fetch, directory, train, validation"),
        ("training.max_epochs=1\nseed=2", "has several lines: give each key a --set of its own"),
        ("evaluation.metrics[0]=bleu", "unknown key evaluation.metrics[0]; did you mean metrics?"),
        ("model[0]=gru", "unknown key model[0]; did you mean model?"),
        ('model.hidden_size="160"', "model.hidden_size = '160': must be a whole number"),
        (f"seed={'9' * 5000}", "small.toml: seed = '9999"),
        ("seed", "--set seed: must be table.key=value"),
        (".a=1", "must be table.key=value"),
        (f"data.train{'.a' * 5000}=1", "must be table.key=value"),
    ],
)
def test_an_error_names_field_value_and_remedy_in_one_line(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, SMALL, override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert override.startswith((".", "seed")) or "small.toml" in str(caught.value) or "--set" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_epochs = 1", "", "training would never end: set training.max_epochs"),
        ("max_epochs = 1", "[schedule]\nkind='cosine'", 'schedule.kind = "cosine" falls towards an end'),
        ('train = "train.tsv"', "", "data: needs train = FILE, or fetch = NAME"),
        ('tokenizer = "word"', "", "target.tokenizer is missing"),
        ("[target]", "[goal]", "unknown key goal"),
        ("[data]", "[data", "not TOML"),
        ("max_epochs = 1", f"max_epochs = {'9' * 5000}", "an integer has thousands of digits"),
        ("max_epochs = 1", f"max_epochs = 0x{'f' * 5000}", "max_epochs = a number that is far too large: must"),
        (
            "[data]",
            f"[data]\ncolumns = [1, 0x{'f' * 5000}]",
            "data.columns = [1, a number that is far too large]: must",
        ),
        ("max_epochs = 1", f"max_epochs = {'[' * 2000}{']' * 2000}", "lists are nested too deep"),
        ("[data]", f"[data]\n{'a.' * 5000}a = 1", "tables or lists are nested too deep"),
        ("max_epochs = 1", "max_epochs = true", "training.max_epochs = true: must be a whole number"),
        ("max_epochs = 1", "max_epochs = [1, true]", "training.max_epochs = [1, true]: must be a whole number"),
        ('"character"', '"a.json"\nnormalize = []', "source.normalize = [] is of a tokenizer that is trained"),
        ('"character"', '"word"\nappend_eos = 1\nlowercase = 1', "lowercase = 1: must be true or false"),
        (
            "[training]",
            "[schedule]\nmilestones = [1.0, 2.0]\n[training]",
            "milestones = [1.0, 2.0] means nothing",
        ),
        (
            '"character"\n[target]\ntokenizer = "word"\n[training]',
            '"word"\n[target]\ntokenizer = "word"\nnormalize = ["nfkc"]\n[model]\nshared_embeddings=true\n[training]',
            "source.normalize = ['nfc'] differs from target.normalize = ['nfkc']",
        ),
        ("max_epochs = 1", "max_epochs = 2026-11-28", "training.max_epochs = datetime.date(2026, 11, 28): must be"),
        ("[training]", "[model]\nshared_embeddings=true\n[training]", "source.tokenizer = 'character' differs"),
        (
            '"character"\n[target]\ntokenizer = "word"\n[training]',
            '"word"\n[target]\ntokenizer = "word"\n[model]\nshared_embeddings=true\n[training]\nsource_vectors="y"',
            "name the file as training.target_vectors",
        ),
        ("[training]", "[training]\nstart_from='x'\ntarget_vectors='y'", "target_vectors would take the place of"),
        ("max_epochs = 1", "scheduled_sampling=0.5\n[validation]\npatience=1", "scheduled_sampling = 0.5 rises"),
        ("max_epochs = 1", 'max_epochs = 1\nprecision = "fp16"\ndevice = "cpu"', '"fp16" is for CUDA, and'),
        ("[data]", '[data]\ndirectory = "d"', "name the fetcher, or leave it out"),
        (
            'train = "train.tsv"\nvalidation = {source = "v.en", target = "v.fr"}',
            'fetch = "reverse"\nsplit = {validation = 0.1}',
            'data: split.validation = 0.1, and fetch = "reverse" brings validation files: leave split out',
        ),
        ("[data]", "[data]\nsplit = {validation = 0.1}", "split.validation = 0.1, and validation names files: leave"),
    ],
)
def test_a_recipe_that_can_not_be_trained_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, SMALL.replace(old, new))
    assert message in str(caught.value)


WRONG_VALUES = (
    3, -1, 2**70, 10**400, 1.5, float("nan"), True, "", "x", "x\ud800", "x\ud800.json", b"x", object(),
    datetime.time(1), [], [1], ["a"], [0.1, 0.2, 0.3], [[1]], [None], {}, {"a": 1}, {"a": {"b": [{}]}},
    {1: 2}, {("a",): 1}, {"": 1},
)  # fmt: skip
WORDS_OF_PYDANTIC = re.compile(r"Input|should|valid |[Tt]uple|after validation|Keys|parse|\.(str|int|float|tuple) =")


def test_no_wrong_value_of_a_recipe_has_a_message_of_the_library() -> None:
    """Each field, wherever it is in the tables, gets values of other types, lengths and ranges."""

    def names(table: type[BaseModel]) -> Iterator[tuple[str, ...]]:
        for name, field in table.model_fields.items():
            yield (name,)
            kinds = (field.annotation, *get_args(field.annotation))
            for inner in kinds:
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    yield from ((name, *others) for others in names(inner))

    for *tables, field in names(Recipe):
        for value in WRONG_VALUES:
            content = tomllib.loads(SMALL)
            table = content
            for name in tables:
                if not isinstance(table.setdefault(name, {}), dict):
                    table[name] = {}
                table = table[name]
            table[field] = value
            with suppress(UserError):
                recipe_from(content, "recipe")
                continue
            with pytest.raises(UserError) as refused:
                recipe_from(content, "recipe")
            for line in (refused.value.summary, *refused.value.differences):
                assert not WORDS_OF_PYDANTIC.search(line.partition(": ")[2] or line), line
            fields = [line.partition(":")[0] for line in refused.value.differences]
            assert len(fields) == len(set(fields)), refused.value


def test_keys_of_tables_from_python_must_be_texts(tmp_path: Path) -> None:
    content = tomllib.loads(SMALL)
    for tables in (content | {1: 2}, content | {"source": {"tokenizer": "word", ("a",): 3}}):
        with pytest.raises(UserError, match=r"unknown key (1|source\.\('a',\)); keys are texts$"):
            recipe_from(tables, "recipe")


def test_files_from_python_may_be_paths_in_a_tuple(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").touch()
    content = tomllib.loads(SMALL)
    content["data"] |= {"train": (Path("a.tsv"), Path("b.tsv")), "test": {"pairs": (Path("b.tsv"),)}}
    data = recipe_from(content, "recipe", folder=tmp_path).data
    inside = str(tmp_path / "b.tsv")
    assert data.train == CorpusFiles(pairs=("a.tsv", inside)) and data.test == CorpusFiles(pairs=(inside,))


def test_data_may_be_in_the_folder_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, alongside = tmp_path / "here", tmp_path / "recipes"
    for folder in (here, alongside):
        folder.mkdir()
    monkeypatch.chdir(here)
    (alongside / "train.tsv").write_text("a\tb\n")
    assert str(load(alongside, SMALL).data.train) == str(alongside / "train.tsv")
    parallel = load(alongside, SMALL, 'data.train={source="train.tsv", target="/t"}').data.train
    assert parallel is not None and parallel.paths == (alongside / "train.tsv", Path("/t"))
    (here / "train.tsv").write_text("a\tb\n")
    assert str(load(alongside, SMALL).data.train) == "train.tsv", "the working directory comes first"


def test_a_folder_named_like_a_tokenizer_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "character").mkdir()
    assert load(tmp_path, SMALL).source.tokenizer == "character"


def test_a_fetcher_names_its_files_and_can_be_overruled(tmp_path: Path) -> None:
    text = SMALL.replace('train = "train.tsv"', 'fetch = "reverse"').replace("validation", "test")
    data = load(tmp_path, text).data
    assert data.directory == "data/reverse"
    assert (str(data.train), str(data.validation), str(data.test)) == (
        "data/reverse/train.tsv",
        "data/reverse/validation.tsv",
        "v.en + v.fr",
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_resolved_recipe_is_read_back_unchanged(tmp_path: Path, path: Path) -> None:
    recipe = load_recipe(path, ["optimizer.learning_rate=1e-05", "training.max_seconds=60"])
    assert load(tmp_path, recipe.to_text()) == recipe


def test_a_recipe_survives_writing(tmp_path: Path) -> None:
    """Checks that unusual names, numbers and absent values are restored unchanged."""
    path = tmp_path / "recipe.toml"
    path.write_text(SMALL)
    awkward = 'quo"te\\ \t\u007f é\n'
    recipe = load_recipe(path, ["optimizer.learning_rate=1e-5", "training.max_seconds=2.0"])
    files = recipe.data.model_copy(update={"train": CorpusFiles(pairs=(awkward,))})
    recipe = recipe.model_copy(update={"data": files})
    path.write_text(recipe.to_text(), encoding="utf-8")
    assert load_recipe(path) == recipe
    content = tomllib.loads(recipe.to_text())
    assert content["data"]["train"] == {"pairs": [awkward]} and "test" not in content["data"]
    assert content["optimizer"]["learning_rate"] == 1e-5 and content["optimizer"]["betas"] == [0.9, 0.999]
    assert isinstance(content["training"]["max_seconds"], float) and content["source"]["normalize"] == ["nfc"]


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + SMALL) == load(tmp_path, SMALL)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_recipe_in_another_encoding_is_refused_with_the_remedy(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("# café\n", encoding=encoding)
    with pytest.raises(UserError, match=r"mine\.toml: can't be read: it is not UTF-8; convert it"):
        load_recipe(path)


def test_a_shipped_recipe_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"copy", "g2p-cmudict-small", "papers/luong"} < shipped_recipes().keys()
    (tmp_path / "copy").mkdir()
    for name, path in shipped_recipes().items():
        assert load_recipe(Path(name)) == load_recipe(path)
        if path.name == "recipe.toml":
            assert load_recipe(path.parent) == load_recipe(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("-", "-: standard input is no recipe; give a file, a folder with a recipe.toml, or the name of an included"),
        ("folder", "folder: the folder has no recipe.toml; give a file, a folder with a recipe.toml, or the name of"),
        ("folder.tsv", "folder.tsv: the folder has no recipe.toml; give a file"),
        ("mine.yaml", "mine.yaml: is not TOML: "),
        ("empty.toml", "data is missing"),
    ],
)
def test_what_is_no_recipe_is_refused_with_the_forms_that_are(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "folder.tsv"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine.yaml").write_text("data:\n  train: a.tsv\n")
    (tmp_path / "empty.toml").touch()
    with pytest.raises(UserError) as refused:
        recipe_of_inputs([name])
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["g2p-cmudict-smal", "recipes/g2p-cmudict-small.toml"])
def test_an_unknown_recipe_is_refused_with_the_available_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        load_recipe(Path(name))
    messages = str(refused.value)
    assert messages.startswith(f"{name}: there is no such recipe; did you mean g2p-cmudict-small?; give ")
    assert "papers/luong" in messages and "\n" not in messages
