"""Tests of `python -m training evaluate` from end to end: runs, bundles, sweeps, comparisons and refusals."""

import csv
import errno
import json
import math
import os
import re
from pathlib import Path

import pytest

from attendant.runtime.bundle.manifest import SEARCH_OPTIONS
from attendant.runtime.decoding.batch import decode_all, score_all
from attendant.runtime.decoding.hypothesis import FinishReason
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.files import CantWrite
from attendant.training.evaluation import evaluating
from attendant.training.run.directory import Run
from attendant.training.run.loading import open_runs
from tests.unit.training.conftest import Command, CopyRun, Runs


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """Returns a file of pairs for the tiny bundle."""
    path = tmp_path / "letters.tsv"
    path.write_text("abc\tAA B\nface\tF EY\njab\tG AE B\nab\tAA\nab\tB\nbadge hid\tB AE\n")
    return path


def entries(run: Path) -> list[dict]:
    return Run(run).evaluations()


def test_evaluate_accepts_other_data_and_other_searches(tmp_path: Path, finished_run: Path, succeeds: Runs) -> None:
    before = entries(finished_run)
    (tmp_path / "más.tsv").write_text("ab\ta b\nab\ta\ncd\tc d\n")
    options = ("--data", tmp_path / "más.tsv", "--beam-size", 2, "--metrics", "wer,bleu", "--checkpoint", "last")
    for _ in range(2):
        message = succeeds("evaluate", finished_run, *options, "--max-length", 5)
        assert "2 examples" in message and "beam 2" in message
    actual = entries(finished_run)
    assert actual[:2] == before
    assert [entry["metric"] for entry in actual[2:]] == ["wer", "bleu"]
    assert actual[2]["decoding"] == {"beam_size": 2, "length_penalty": 0.0, "max_length": 5}
    assert "last checkpoint" in actual[2]["protocol"]
    assert actual[2]["interval"].keys() == {"low", "high"} and actual[2]["num_resamples"] == 1000
    printed = succeeds("evaluate", finished_run, *options, "--json")
    assert printed.isascii() and "más.tsv" in json.loads(printed)["data"], "any encoding of standard output has ASCII"


def test_a_model_that_does_not_know_the_sources_gets_a_warning(
    tmp_path: Path, tiny_bundle_path: Path, succeeds: Runs
) -> None:
    data = tmp_path / "data.tsv"
    for text, is_known in (("abc\tAA B\n", True), ("xab\tAA\nxyz\tB\n", False)):
        data.write_text(text)
        message = succeeds("evaluate", tiny_bundle_path, "--data", data, "--metrics", "wer", "--bootstrap", 0)
        warning = f"warning: 66.7% of the tokens of the sources are unknown to {tiny_bundle_path}, fp32 on cpu"
        assert (warning in message) != is_known


def test_a_run_without_a_test_split_is_refused_with_a_suggestion(finished_run: Path, refused: Runs) -> None:
    recipe = finished_run / "recipe.toml"
    without, num_tables = re.subn(r"\[data\.test\]\n(.+\n)+", "", recipe.read_text())
    assert num_tables == 1
    recipe.write_text(without)
    error = refused("evaluate", finished_run)
    assert error.endswith("has no data.test: give --data FILE.tsv, or --split validation\n")


def test_a_run_of_a_host_with_cuda_is_evaluated_on_one_without(
    finished_run: Path, succeeds: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    recipe = Run(finished_run).recipe_path
    recipe.write_text(recipe.read_text().replace('device = "cpu"', 'device = "cuda"'))
    assert "16 examples" in succeeds("evaluate", finished_run, "--metrics", "wer", "--bootstrap", 0)


@pytest.mark.parametrize(("number", "status"), [(errno.EROFS, 0), (errno.ENOSPC, 2)])
def test_results_that_can_not_be_recorded_are_still_printed(
    finished_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    """Checks that a read-only run is evaluated without being recorded, and that a full disk is an error."""
    before = entries(finished_run)

    def refuse(path: Path, content: object) -> None:
        raise CantWrite(path, number)

    monkeypatch.setattr("attendant.training.run.directory.write_json", refuse)
    actual, message, errors = command(
        "evaluate", finished_run, "--beam-sizes", "1,2", "--metrics", "per", "--bootstrap", 0
    )
    assert actual == status and "beam 2" in message
    (line,) = errors.splitlines()
    assert re.match(r"training: .*evaluation\.json: can't be written: ", line)
    assert entries(finished_run) == before


@pytest.mark.parametrize(
    ("options", "searches"),
    [
        # A length penalty does not change greedy search, and the offset has no effect without a length penalty.
        (
            ("--beam-sizes", "1,2", "--length-penalties", "0,0.6"),
            ["greedy", "beam 2, length penalty 0", "beam 2, length penalty 0.6"],
        ),
        (
            ("--beam-size", 2, "--length-penalty", "0,1", "--length-penalty-offset", "0,5"),
            ["beam 2, length penalty 0", "beam 2, length penalty 1, offset 0", "beam 2, length penalty 1"],
        ),
        (
            ("--beam-sizes", "1,2", "--patience", "0,2"),
            ["greedy", "beam 2, length penalty 0", "beam 2, length penalty 0, patience 2"],
        ),
    ],
    ids=["penalties", "offsets", "patience"],
)
def test_a_sweep_measures_each_search_once(
    finished_run: Path, tmp_path: Path, succeeds: Runs, options: tuple[object, ...], searches: list[str]
) -> None:
    measuring = ("--metrics", "per", "--bootstrap", 0, "--json", "--outputs", tmp_path / "outputs.tsv")
    message = succeeds("evaluate", finished_run, *options, *measuring)
    results = json.loads(message)["results"]
    assert all(result["decode_seconds"] > 0 and result["examples_per_second"] > 0 for result in results)
    measured = [result["measurements"][0] for result in results]
    assert [each["protocol"].split("; ")[-1] for each in measured] == [f"{each}, at most 8 tokens" for each in searches]
    assert all(each["interval"] is None for each in measured)
    recorded = {each["protocol"]: each["decoding"] for each in entries(finished_run)}
    rows = csv.DictReader((tmp_path / "outputs.tsv").read_text().splitlines(), delimiter="\t")
    written = dict.fromkeys(tuple(row[name] for name in SEARCH_OPTIONS) for row in rows)
    for each, search, (beam_size, penalty, offset, patience) in zip(measured, searches, written, strict=True):
        decoding = {"beam_size": int(beam_size), "length_penalty": float(penalty), "max_length": 8}
        if "offset" in search:
            decoding["length_penalty_offset"] = float(offset)
        if "patience" in search:
            decoding["patience"] = float(patience)
        assert ("patience" in search) == bool(patience)
        assert each["decoding"] == recorded[each["protocol"]] == decoding


def test_by_length_reports_a_value_per_bin_of_lengths(finished_run: Path, succeeds: Runs, tmp_path: Path) -> None:
    (tmp_path / "more.tsv").write_text("ab\ta b\nabcd\ta b c d\ncd\tc d\n")
    options = ("--data", tmp_path / "more.tsv", "--metrics", "wer,per", "--length-unit", "tokens")
    message = succeeds("evaluate", finished_run, *options, "--by-length", "2,3")
    wer = next(entry for entry in entries(finished_run) if "more.tsv" in entry["protocol"])
    assert wer["length_unit"] == "tokens"
    assert [(each["low"], each["high"], each["num_examples"]) for each in wer["by_length"]] == [(1, 2, 2), (4, None, 1)]
    assert "source tokens" in message and "1-2" in message and "4+" in message
    message = succeeds("evaluate", finished_run, *options[:4], "--by-length")
    assert "source words" in message and "1-10" in message
    recipe = Run(finished_run).recipe_path
    recipe.write_text(recipe.read_text().replace('length_unit = "words"', 'length_unit = "tokens"\nlength_edges = [3]'))
    message = succeeds("evaluate", finished_run, *options[:4])
    assert "source tokens" in message and "1-3" in message and "4+" in message


def test_a_bundle_is_decoded_by_its_own_graphs(
    tiny_bundle_path: Path, letters: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    steppers = []
    decode_all = evaluating.decode_all
    monkeypatch.setattr(
        evaluating,
        "decode_all",
        lambda stepper, *rest, **more: steppers.append(stepper) or decode_all(stepper, *rest, **more),
    )
    before = sorted(path.name for path in tiny_bundle_path.iterdir())
    actual = tmp_path / "found.json"
    status, message, errors = command(
        "evaluate", tiny_bundle_path, "--data", letters, "--output", actual, "--outputs", tmp_path / "outputs.tsv"
    )
    assert status == 0, errors
    assert [type(stepper).__name__ for stepper in steppers] == ["OnnxStepper"]
    assert sorted(path.name for path in tiny_bundle_path.iterdir()) == before
    content = json.loads(actual.read_text())
    (result,) = content["results"]
    (wer,) = result["measurements"]  # the metric and the search are the manifest's
    assert wer["metric"] == "wer" and wer["num_examples"] == 5
    assert wer["decoding"] == {"beam_size": 1, "length_penalty": 0.6, "max_length": 48}
    assert "letters.tsv, fp32 on cpu; " in wer["protocol"] and "fp32 on cpu" in message
    assert len((tmp_path / "outputs.tsv").read_text().splitlines()) == 6


def test_models_are_compared_with_the_first(
    finished_run: Path, tiny_bundle_path: Path, letters: Path, command: Command, succeeds: Runs
) -> None:
    message = succeeds("evaluate", finished_run, tiny_bundle_path, "--data", letters, "--json")
    first, second = json.loads(message)["results"]
    assert first["differences"] == []
    # Both are measured by the first model's metrics: the bundle's own metric is only wer.
    difference = second["differences"][1]
    assert difference["metric"] == "per"
    expected = second["measurements"][1]["value"] - first["measurements"][1]["value"]
    assert difference["value"] == pytest.approx(expected, abs=2e-4)
    assert difference["interval"]["low"] <= difference["value"] <= difference["interval"]["high"]
    assert 0 < difference["p_value"] <= 1
    status, message, _ = command("evaluate", finished_run, tiny_bundle_path, "--data", letters, "--beam-sizes", "1,2")
    against = message[message.index(f"against {finished_run}, ") :]
    assert status == 0 and against.count("greedy") == against.count("beam 2") == against.count("on cpu") // 2 == 1


def test_runs_are_compared_on_one_part_only(
    tmp_path: Path, tiny_recipe: Path, finished_run: Path, succeeds: Runs, refused: Runs
) -> None:
    (tmp_path / "other.tsv").write_text("ab\ta b\n")
    other = tmp_path / "other"
    options = ("--set", f"data.test={tmp_path / 'other.tsv'}", "--set", "training.max_steps=1")
    succeeds(tiny_recipe, "--output", other, *options)
    assert "give --data FILE.tsv" in refused("evaluate", finished_run, other)
    succeeds("evaluate", finished_run, other, "--split", "validation")


def test_an_interruption_keeps_the_results_measured_so_far(
    finished_run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = entries(finished_run)
    decode_all = evaluating.decode_all
    calls = []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode_all(*arguments, **options)

    monkeypatch.setattr(evaluating, "decode_all", interrupted)
    status, _, _ = command(
        "evaluate", finished_run, "--beam-sizes", "2,3", "--metrics", "per", "--outputs", tmp_path / "outputs.tsv"
    )
    assert status == 130
    assert [entry["decoding"]["beam_size"] for entry in entries(finished_run)[len(before) :]] == [2]
    assert not list(tmp_path.glob("*outputs.tsv*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beam-size", "0"), "--beam-size 0: "),
        (("--beam-sizes", "2,x"), "--beam-size x: "),
        (("--metrics", "wer,rouge"), "--metrics rouge: "),
        (("--data", "none.tsv"), "no such file"),
        (("--by-length", "ten"), "--by-length ten: "),
        (("--precision", "int8"), "--precision int8: is for bundles"),
        (("--provider", "cpu"), "--provider cpu: is for bundles"),
        (("--bleu-tokenizer", "zh"), "--bleu-tokenizer zh: is of bleu, and the metrics are wer, per"),
        (("--length-unit", "tokens"), "--length-unit tokens: is of the bins by length: give --by-length too"),
        (("--output", "nowhere/found.json"), "--output nowhere/found.json: there is no directory nowhere"),
        (("--outputs", "/tmp"), "--outputs /tmp: is a directory"),
        (("--output", "results.json.gz"), "results.json.gz: is written as plain text: leave .gz out"),
        (("--output", "both", "--outputs", "both"), "--output and --outputs are both both: name two files"),
        (("--output", "x.svg", "--chart", "x.svg"), "--output and --chart are both x.svg: name two files"),
        (("--outputs", "{run}/../validation.tsv"), "validation.tsv, which this command uses: name another file"),
        (("--output", "{run}/../validation.tsv"), "validation.tsv, which this command uses: name another file"),
        (("--output", "{run}/evaluation.json"), "evaluation.json, which this command uses: name another file"),
    ],
)
def test_options_are_checked_before_anything_is_decoded(
    finished_run: Path, refused: Runs, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str], message: str
) -> None:
    monkeypatch.delattr(evaluating, "decode_all")
    assert message in refused("evaluate", finished_run, *(option.format(run=finished_run) for option in options))


def test_a_folder_that_can_not_be_written_to_is_refused_before_anything_is_decoded(
    finished_run: Path, refused: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(evaluating, "decode_all")
    monkeypatch.setattr(os, "access", lambda path, mode: path != finished_run)
    for arguments in (("evaluate", finished_run, "--outputs", finished_run / "out.tsv"), ("report", finished_run)):
        error = refused(*arguments)
        assert re.search(r"(out\.tsv|report\.html): can't be written: Permission denied", error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "has no test split: give --data FILE.tsv"),
        (("--data", "{data}", "--precision", "int8"), "precision int8 is not in the bundle tiny; it has fp32"),
        (("--data", "{data}", "--checkpoint", "best"), "--checkpoint best: is for runs"),
        (("--data", "{data}", "--beam-size", "9"), "--beam-size 9: {bundle} allows at most 8"),
        (("--data", "{data}", "--output", "{data}"), "letters.tsv, which this command uses"),
        (("--data", "{data}", "--output", "{bundle}/results.json"), "would change {bundle}, which this command uses"),
        (("--data", "{data}", "--confidence", "--chart", "chart.png"), "--chart chart.png: must end in .svg"),
    ],
)
def test_options_that_a_bundle_does_not_support_are_refused(
    tiny_bundle_path: Path, letters: Path, refused: Runs, options: tuple[str, ...], message: str
) -> None:
    error = refused(
        "evaluate", tiny_bundle_path, *(option.format(data=letters, bundle=tiny_bundle_path) for option in options)
    )
    assert message.format(bundle=tiny_bundle_path) in error


def test_a_path_that_is_neither_run_nor_bundle_is_refused(tmp_path: Path, refused: Runs) -> None:
    assert "is neither a run (no recipe.toml) nor a bundle (no manifest.json)" in refused("evaluate", tmp_path)
    assert "none is not there" in refused("evaluate", tmp_path / "none")
    assert "test_evaluate.py is neither a run" in refused("evaluate", __file__)


def test_an_ensemble_of_runs_is_evaluated_and_not_recorded(
    finished_run: Path, copy_run: CopyRun, succeeds: Runs
) -> None:
    other, before = copy_run("other", "training.max_epochs=1", "seed=2"), entries(finished_run)
    for options, words in (((), "as an ensemble"), (("--checkpoint", "last"), "last checkpoint, with")):
        message = succeeds("evaluate", finished_run, other, "--ensemble", "--metrics", "wer", *options)
        assert words in " ".join(message.split())
    assert entries(finished_run) == before, "a run's file has only values of this run alone"


def test_an_ensemble_of_one_run_or_of_a_bundle_is_refused(
    finished_run: Path, tiny_bundle_path: Path, command: Command
) -> None:
    for paths in ((finished_run,), (finished_run, tiny_bundle_path)):
        status, _, errors = command("evaluate", *paths, "--ensemble")
        assert (status == 2 and errors.startswith("evaluate: --ensemble")) or "--ensemble: is of two runs" in errors
        assert "Traceback" not in errors


def test_rescoring_ranks_hypotheses_by_another_run(
    tmp_path: Path, finished_run: Path, copy_run: CopyRun, succeeds: Runs
) -> None:
    other, before = copy_run("other", "training.max_epochs=1", "seed=2"), entries(finished_run)
    options = ("--beam-size", 4, "--length-penalty", 1, "--metrics", "wer", "--outputs", tmp_path / "outputs.tsv")
    assert "rescored" in succeeds("evaluate", finished_run, *options, "--rescore", other)
    assert entries(finished_run) == before, "a run's file has only values of this run alone"
    model, judge = (open_runs([path]).model for path in (finished_run, other))
    rows = csv.DictReader((tmp_path / "outputs.tsv").read_text().splitlines(), delimiter="\t")
    search = DecodingOptions(beam_size=4, num_hypotheses=4, length_penalty=1.0, max_length=8)
    for row in rows:
        source = model.source_ids([row["source"]])
        ((*beam,),) = decode_all(model.stepper, source, search, model.special_ids)
        ended = [each for each in beam if each.finish_reason is FinishReason.EOS]
        scored = score_all(judge.stepper, [(source[0], each.token_ids) for each in ended], judge.special_ids)
        scores = [each.log_prob / search.penalty(len(each.token_log_probs)) for each in scored]
        assert float(row["score"]) >= max(scores, default=-math.inf) - 1e-4
        if row["output"] in (texts := [judge.target_tokenizer.decode(each.token_ids) for each in ended]):
            assert float(row["score"]) == pytest.approx(scores[texts.index(row["output"])], abs=1e-4)


def test_rescoring_one_hypothesis_or_by_another_tokenizer_is_refused(
    tmp_path: Path, tiny_recipe: Path, finished_run: Path, succeeds: Runs, refused: Runs
) -> None:
    assert "--rescore: greedy search has one hypothesis" in refused("evaluate", finished_run, "--rescore", finished_run)
    few = tmp_path / "few.tsv"
    few.write_text("ab\ta b\nba\tb a\n")
    options = ("--set", f"data.train={few}", "--set", "data.allow_unknown_targets=true")
    succeeds(tiny_recipe, "--output", tmp_path / "other", *options)
    error = refused("evaluate", finished_run, "--beam-size", 2, "--rescore", tmp_path / "other")
    assert "has another source_tokenizer than" in error


def test_outputs_are_sorted_the_least_certain_first(finished_run: Path, tmp_path: Path, succeeds: Runs) -> None:
    path = tmp_path / "outputs.tsv"
    options = ("--beam-sizes", "1,2", "--metrics", "cer,ter", "--bootstrap", 0, "--outputs", path)
    succeeds("evaluate", finished_run, *options)
    rows = list(csv.DictReader(path.read_text().splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    for size in ("1", "2"):
        scores = [float(row["score"]) for row in rows if row["beam_size"] == size]
        assert len(scores) == 16 and scores == sorted(scores) and len(set(scores)) > 1


def test_the_tokenizer_of_bleu_is_an_option(finished_run: Path, refused: Runs, succeeds: Runs) -> None:
    options = ("--metrics", "bleu", "--bootstrap", 0, "--json")
    message = succeeds("evaluate", finished_run, *options, "--bleu-tokenizer", "char")
    assert "|tok:char|" in json.loads(message)["results"][0]["measurements"][0]["protocol"]
    error = refused("evaluate", finished_run, *options, "--bleu-tokenizer", "french")
    assert "--bleu-tokenizer french: must be one of 13a, intl, zh" in error
