"""Computes the teachers' soft targets of the training split, once.

They are kept on disk, not computed with each batch: they are the same in every epoch, and a teacher's forward pass
takes a third of a training step.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attendant.training.data.batches import all_batches, collate
from attendant.training.data.corpus import Corpus
from attendant.training.data.distillation import open_soft_targets, positions_of, store_soft_targets
from attendant.training.data.training_split import TrainingSplit
from attendant.training.kernels.loss import NEVER_GENERATED
from attendant.training.model.stepping.ensemble import Ensemble
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.directory import Run, read_json
from attendant.training.run.loading import load_members
from attendant.training.run.starting import weights_record
from attendant.training.terminal import progress_bar


def with_soft_targets(
    train: TrainingSplit,
    recipe: Recipe,
    run: Run,
    teachers: Sequence[Run],
    device: torch.device,
    announce: Callable[[str], None],
) -> tuple[Corpus, dict[str, Any] | None]:
    """The training split with the teachers' soft targets, and the content of teachers.json; where the recipe names no
    teachers, the split as it is and None.

    Args:
        run: that learns.
        teachers: empty where the run is resumed: teachers.json then says which they were.

    Raises:
        UserError: a teacher that can't be opened, or that starts or ends its texts otherwise than the first.
    """
    config, offsets = recipe.distillation, train.corpus.targets.offsets
    if not config.teachers:
        return train.corpus, None
    said: dict[str, Any] = (
        {"runs": list(map(weights_record, teachers))} if teachers else read_json(run.teachers_path, dict, "runs")
    )
    folder = recipe.data.corpus_folder(run.path)
    checkpoints = [one["checkpoint"] for one in said["runs"]]
    key = hashlib.sha256(json.dumps([train.key, *checkpoints, config.top_k]).encode()).hexdigest()
    found = open_soft_targets(folder / key, offsets, config)
    if found is None:
        loaded = load_members([Path(path) for path in config.teachers], "distillation.teachers")
        num_positions = int(offsets[-1]) + len(train.corpus)
        announce(f"asking {len(loaded)} teachers about {num_positions:,} symbols, once")
        ensemble = Ensemble([one.model for one in loaded]).to(device).eval()
        num_symbols = min(config.top_k, train.target_tokenizer.vocabulary_size - len(NEVER_GENERATED))
        with progress_bar() as progress:
            task = progress.add_task("asking", total=num_positions)
            store_soft_targets(
                folder / key,
                num_positions,
                num_symbols,
                _soft_targets(ensemble, train.corpus, recipe, num_symbols, device, partial(progress.advance, task)),
            )
        found = open_soft_targets(folder / key, offsets, config)
    return replace(train.corpus, soft_targets=found), said


@torch.inference_mode()
def _soft_targets(
    ensemble: Ensemble,
    corpus: Corpus,
    recipe: Recipe,
    num_symbols: int,
    device: torch.device,
    advance: Callable[[int], None],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]]:
    """Positions [n], their K most probable symbols [n, K] and those symbols' probabilities [n, K], which add up to 1,
    batch by batch; `advance` is called with each n.
    """
    for indices in all_batches(corpus, recipe.batches):
        batch = collate(corpus, indices, ensemble.start_id).to(device)
        log_probs = ensemble(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
        values, ids = log_probs.topk(num_symbols, -1)
        probabilities = torch.softmax(values.float(), -1).half()
        places = positions_of(corpus.targets.offsets, indices)
        yield places, ids.int().cpu().numpy(), probabilities.cpu().numpy()
        advance(len(places))
