"""attendant.report: runs measured and drawn."""

from collections.abc import Sequence

from attendant.runtime.errors import UserError
from attendant.training.data.config import Split
from attendant.training.evaluation.bootstrap import LengthUnit
from attendant.training.evaluation.session import Data, PathName, is_bundle
from attendant.training.library.evaluation import check_folder, chosen_data, paths_of
from attendant.training.progress import ShowProgress
from attendant.training.report.measuring import MAX_RUNS, choose_examples, measure_runs
from attendant.training.report.page import Report, check_form, compose, write_report


def report(
    runs: PathName | Sequence[PathName],
    *,
    output: PathName | Sequence[PathName] = (),
    data: Data | None = None,
    split: Split = "test",
    examples: int | PathName = 3,
    length_unit: LengthUnit | None = None,
    progress: ShowProgress | None = None,
) -> Report:
    """Measures runs on held-out data and shows them as `attendant report` does; notebooks show the page.

    Args:
        runs: the others are compared with the first.
        output: files to write: FILE.html, or FILE.md with its pictures in FILE_pictures/ beside it.
        data, split: as in `evaluate`.
        examples: those whose attention is shown, in addition to the worst ones: their number, or a file of sources.
        length_unit: of the bins. If None, the unit suits the sources.
        progress: as in `evaluate`.

    Raises:
        UserError: too many runs, one that is none, or a file of another form; bad or no data.
        CantWrite: a file can't be written.
    """
    paths, outputs = paths_of(runs), paths_of(output)
    if not 1 <= len(paths) <= MAX_RUNS:
        raise UserError(f"{len(paths)} runs: a report compares 1 to {MAX_RUNS}")
    for path in paths:
        if is_bundle(path):
            raise UserError(f"{path} is a bundle: a report is of a run, which has the training's journal and weights")
    for path in outputs:
        check_form(path)
        check_folder("--output", path)
    measured = chosen_data(data, split, paths)
    chosen = choose_examples(str(examples), measured.examples)
    composed = compose(measure_runs(paths, measured, chosen, length_unit=length_unit, progress=progress), measured.name)
    for path in outputs:
        write_report(composed, path)
    return composed
