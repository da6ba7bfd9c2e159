"""Tests of `attendant.evaluate` and `attendant.report`: equality with the commands, pairs in memory, and refusals."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendant
from attendant.training.run.directory import Run
from tests.paths import ROOT
from tests.unit.training.conftest import Runs

BUNDLE = ROOT / "models" / "g2p-en"
PAIRS = [("ab", "a b"), ("ab", "a"), ("cd", "c d"), ("abcd", "a b c d")]


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    for result in document["results"]:
        del result["decode_seconds"], result["examples_per_second"]
    return document


def test_the_function_equals_the_command_and_prints_nothing(
    tmp_path: Path, finished_run: Path, succeeds: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int, int]] = []
    results = attendant.evaluate(
        finished_run,
        split="validation",
        beam_size=[1, 2],
        length_penalty=0.6,
        metrics="per",
        outputs=tmp_path / "function.tsv",
        progress=lambda *call: calls.append(call),
    )
    assert capsys.readouterr() == ("", "")
    options = ("--split", "validation", "--beam-sizes", "1,2", "--length-penalty", "0.6", "--metrics", "per")
    message = succeeds("evaluate", finished_run, *options, "--json", "--outputs", tmp_path / "command.tsv")
    assert without_times(results.to_json()) == without_times(json.loads(message))
    assert (tmp_path / "function.tsv").read_text() == (tmp_path / "command.tsv").read_text()
    assert len(results) == 2 and results[1].evaluation.options.beam_size == 2 and results[1].differences
    assert [call for call in calls if call[1] in (0, call[2])] == [
        (f"{finished_run}: {search}", done, 16)
        for search in ("greedy", "beam 2, length penalty 0.6")
        for done in (0, 16)
    ]
    message = succeeds("evaluate", finished_run, *options)
    # The tables are equal too, except the speed.
    words, expected = ([line.split()[:4] for line in text.splitlines()] for text in (str(results), message))
    assert words == expected
    page = results._repr_html_()
    assert page.startswith("<pre>") and "beam 2, length penalty 0.6" in page and "against greedy" in page


def test_pairs_in_memory_are_data(finished_run: Path) -> None:
    results = attendant.evaluate(finished_run, data=PAIRS, by_length=[2, 3], length_unit="tokens", beam_size=[])
    assert results[0].evaluation.num_examples == 3, "several targets of a source are its references"
    assert results.data_name.startswith("4 pairs in memory (")
    wer = results[0].evaluation.measurements[0]
    assert [(each.low, each.high) for each in wer.by_length] == [(1, 2), (4, None)]
    (recorded,) = [
        entry
        for entry in Run(finished_run).evaluations()
        if entry["metric"] == "wer" and "in memory" in entry["protocol"]
    ]
    assert recorded["value"] == results[0].values["wer"]
    other = attendant.evaluate(finished_run, data=[*PAIRS[:3], ("dd", "d d")])
    assert other.data_name != results.data_name, "other pairs are other data"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": []}, "models: there is none"),
        ({"models": None}, "models=None: must be a path"),
        ({"outputs": 3}, "outputs=3: must be a path"),
        ({"progress": 3, "models": "nowhere"}, r"progress=3: must be a function of \(work, done, total\)"),
        ({"beam_size": [[4]]}, r"--beam-size \[4\]: must be a whole number"),
        ({"data": 3}, r"data=3: must be files of pairs, or pairs \(source, target\)"),
        ({"data": "a\0b"}, r"data='a\\x00b': must be a path"),
        ({"data": [("a", "b")], "split": "test"}, "--split test: is of a run's own data, and --data gives others"),
        ({"by_length": [3, 2]}, r"--by-length \[3, 2\]: must be whole numbers that rise"),
        ({"length_penalty": [0, 1]}, "--length-penalty 1: has no effect on the greedy search of"),
        ({"length_penalty_offset": 0}, "--length-penalty-offset 0: has no effect on the greedy search of"),
        ({"length_penalty_offset": 0, "beam_size": 2}, "--length-penalty-offset 0: is of the length penalty"),
        ({"patience": 2}, "--patience 2: has no effect on the greedy search of"),
        ({"patience": 11, "beam_size": 2}, "--patience 11: must be less than or equal to 10"),
        ({"bootstrap": 1.5}, r"--bootstrap 1\.5: must be 0"),
        ({"bootstrap": 10**12}, r"--bootstrap 1(0{12}): must be 0 .* to 1000000"),
        ({"max_length": 10**20}, "--max-length 1(0{20}): must be less than or equal to 1000000"),
        ({"data": [("a", "b"), ("c", " ")]}, r"data\[1\]: the target is empty"),
        ({"data": [("a", 1)]}, r"data\[0\] = \('a', 1\): must be a pair of texts"),
        ({"split": "dev"}, "--split dev: must be of train, validation, test"),
        ({"checkpoint": "first"}, "--checkpoint first: must be of best, last"),
    ],
)
def test_invalid_options_are_refused(finished_run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(attendant.UserError, match=message) as caught:
        attendant.evaluate(**{"models": finished_run} | options)
    assert "\n" not in str(caught.value)


def test_numbers_may_be_numpys(finished_run: Path) -> None:
    metrics = ("wer", "bleu", "chrf", "ter", "perplexity")
    results = attendant.evaluate(finished_run, metrics=metrics, beam_size=np.array([1, 2]), bootstrap=np.int64(10))
    assert pickle.loads(pickle.dumps(results)) == results and results.index(results[1]) == 1
    assert [result.evaluation.options.beam_size for result in results] == [1, 2]
    assert Run(finished_run).evaluations()[0]["num_resamples"] == 10


def test_a_single_example_has_no_intervals(finished_run: Path) -> None:
    """Checks that a test set of one example has no intervals: all its resamples are equal."""
    results = attendant.evaluate(finished_run, data=PAIRS[:2], by_length=[2], beam_size=[1, 2], length_penalty=0)
    assert results[0].evaluation.num_examples == 1
    for result in results:
        assert all(m.interval is m.by_length[0].interval is None for m in result.evaluation.measurements)
    assert all(each.interval is each.p_value is None for each in results[1].differences)
    assert "nan" not in str(results)


def test_a_report_is_the_commands_page(
    tmp_path: Path, finished_run: Path, succeeds: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    report = attendant.report(finished_run, output=[tmp_path / "function.html"], examples=np.int64(2))  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
    succeeds("report", finished_run, "--output", tmp_path / "command.html", "--examples", "2")
    assert (tmp_path / "function.html").read_text() == (tmp_path / "command.html").read_text()
    assert report.runs[0].evaluation.measurements[0].metric == "wer"


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        (BUNDLE, {}, "is a bundle: a report is of a run"),
        ("run", {"length_unit": "lines"}, "--length-unit lines: must be of words, tokens"),
        ("run", {"examples": -1}, "--examples -1: must be a number of examples"),
        ("run", {"progress": "bar"}, "progress='bar': must be a function of"),
        ("run", {"examples": 2.5}, "examples=2.5: must be a number of examples, or a file"),
        (None, {}, "runs=None: must be a path"),
        ([], {}, "0 runs: a report compares 1 to 26"),
    ],
)
def test_invalid_arguments_of_a_report_are_refused(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, runs: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(finished_run.parent)
    with pytest.raises(attendant.UserError, match=message):
        attendant.report(runs, **options)
