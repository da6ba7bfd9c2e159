"""The tables and the picture of docs/experiments/long-sources.md."""

from experiments.long_sources.measuring import BIN, LENGTHS, NUM_BINS, RESULTS, measured_models
from experiments.pages import draw_runs, picture, spread, write_table
from experiments.plan import read_results

PAGE = "long-sources"
PANELS = (("per", "PER (%)"), ("on_word", "attention on the word that is said (%)"))


def show_long_sources() -> None:
    """Of what `measure_long_sources` has measured."""
    results = read_results(RESULTS, {})
    models = {name: [results[str(path)] for path in paths] for name, paths in measured_models().items()}
    for measure, _ in PANELS:
        rows = [
            [name, str(len(runs)), *map(spread, zip(*(one[measure] for one in runs), strict=True))]
            for name, runs in models.items()
        ]
        write_table(PAGE, measure, ["model", "runs", *(f"{length} letters" for length in LENGTHS)], rows)
    rows = [
        [
            name,
            *map(spread, zip(*(one["right"] + one["on_word_by_place"] for one in runs), strict=True)),
        ]
        for name, runs in models.items()
    ]
    which = [f"{place * BIN + 1} to {(place + 1) * BIN}" for place in range(NUM_BINS)]
    headings = [f"{what}, {sounds}" for what in ("right", "attention on the word") for sounds in which]
    write_table(PAGE, "place", ["model", *headings], rows)
    with picture(PAGE, 7.5, 3.2, columns=2) as axes:
        for axis, (measure, title) in zip(axes, PANELS, strict=True):
            for number, (name, runs) in enumerate(models.items()):
                draw_runs(axis, number, name, LENGTHS, [one[measure] for one in runs])
            axis.set_title(title)
            axis.set_xscale("log")
            axis.set_xticks(LENGTHS, list(map(str, LENGTHS)))
            axis.minorticks_off()
            axis.set_xlabel("letters of the source")
            axis.set_ylim(0, 100)
        axes[0].legend(frameon=False, fontsize=7)
