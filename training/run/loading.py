"""A trained run, opened for evaluation or export, or to teach another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.config import Split
from attendant.training.data.pairs import group_references, read_pairs, sample_evenly
from attendant.training.data.tokenization import encode_source
from attendant.training.model import Seq2Seq
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.checkpoint import BEST, checkpoint_path, load_state, load_weights, weights_digest
from attendant.training.run.directory import Run, read_json
from attendant.training.run.state import TrainingState


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with everything that says where it came from.

    Attributes:
        recipe: the recipe as resolved; `recipe.model_dump(mode="json")` is its plain form.
        model: in evaluation mode, on the CPU.
        checkpoint: "sha256:" and the digest of the weights' file.
        state: where the training stood.
        evaluation: entries {metric, value, protocol, num_examples, decoding}; may be empty.
        versions: what the training ran on; `commit` is among them.
        data: files with their digests, and counts; `digest` stands for all of them.
    """

    path: Path
    recipe: Recipe
    model: Seq2Seq
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    checkpoint: str
    state: TrainingState
    evaluation: list[dict[str, Any]]
    versions: dict[str, str]
    data: dict[str, Any]

    @property
    def commit(self) -> str:
        return self.versions["commit"]

    @property
    def data_digest(self) -> str:
        return str(self.data["digest"])

    @property
    def max_length_ratio(self) -> float | None:
        """The ratio of training/data/corpus.py; None: the run is older than that, and did not record it."""
        found: float | None = self.data.get("max_length_ratio")
        return found

    def held_out_sources(self, limit: int, splits: Sequence[Split] = ("validation", "test")) -> list[list[int]]:
        """At most `limit` sources, without EOS, that a request could give; none where the data is not here any more."""
        sources: list[list[int]] = []
        for split in splits:
            files = self.recipe.data.files(split)
            if files is None or not all(path.is_file() for path in files.paths) or len(sources) >= limit:
                continue
            examples = sample_evenly(group_references(read_pairs(files)), limit - len(sources))
            encoded = encode_source(self.source_tokenizer, [example.source for example in examples], append_eos=False)
            sources += [source for source in encoded if 0 < len(source) <= self.recipe.data.max_source_tokens]
        return sources


def load_run(path: Path | str, which: str = BEST) -> LoadedRun:
    """Opens a run for evaluation or export.

    Args:
        which: "best" or "last".

    Raises:
        UserError: no run, no checkpoint yet, a damaged file.
    """
    run = Run(Path(path))
    recipe = run.recipe()
    directory = checkpoint_path(run, which)
    if directory is None:
        raise UserError(f"{run.path} has no checkpoint {which!r} yet: train it (--resume continues what was begun)")
    source_tokenizer, target_tokenizer = run.tokenizers()
    model = Seq2Seq(recipe.model, source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
    load_weights(directory, model)
    return LoadedRun(
        path=run.path,
        recipe=recipe,
        model=model.eval(),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        checkpoint=weights_digest(directory),
        state=load_state(directory),
        evaluation=run.evaluations(),
        versions=read_json(run.versions_path, dict, "commit"),
        data=read_json(run.data_path, dict, "digest"),
    )


def load_members(paths: Sequence[Path], option: str, which: str = BEST) -> list[LoadedRun]:
    """Opens runs that predict together.

    Args:
        option: what names them, for errors.

    Raises:
        UserError: a run that can't be opened, or that has another tokenizer than the first.
    """
    loaded = [load_run(path, which) for path in paths]
    first = loaded[0]
    for one in loaded:
        for side in ("source_tokenizer", "target_tokenizer"):
            if getattr(one, side).to_text() != getattr(first, side).to_text():
                raise UserError(
                    f"{option}: {one.path} and {first.path} have different tokenizers ({side}): train all members with "
                    "the tokenizers of one (the same data, or training.start_from)"
                )
        ends = (one.model.start_id, one.recipe.source.append_eos)
        if ends != (first.model.start_id, first.recipe.source.append_eos):
            raise UserError(
                f"{option}: {one.path} and {first.path} differ in model.decoder.start_symbol or source.append_eos: "
                "train all members with the same"
            )
    return loaded
