"""Plans are recipes, hand links are what they say, and gradients are those of the equations."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.runtime.errors import UserError
from attendant.training.data.pairs import Pair
from experiments import comparison, hours, pages, trainings
from experiments.alignment.error_rate import agreement, diagonal_links
from experiments.alignment.hand import AlignedWord, read_words
from experiments.comparison import Found
from experiments.long_sources import measuring
from experiments.long_sources.texts import LongSource, run_together
from experiments.memory.learning import learn
from experiments.memory.networks import KINDS, Kind, Network
from experiments.memory.tasks import ADDING, TASKS, Task
from experiments.pages import write_table
from experiments.plan import load_plan, plan_names, run_of

BEGINNING = 'question = "?"\npage = "p"\nmetric = "per"\n'
MEASURED = '[{"metric": "wer", "value": 30.0, "protocol": "greedy", "num_examples": 9}]'
"""Of a plan."""


@pytest.mark.parametrize("name", plan_names())
def test_every_variant_of_a_plan_is_a_recipe_of_its_own(name: str) -> None:
    plan = load_plan(name)
    recipes = [plan.resolved(variant, seed) for variant in plan.variants for seed in plan.seeds]
    assert len({recipe.to_text() for recipe in recipes}) == len(plan.variants) * len(plan.seeds) > 1


def test_what_is_no_plan_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="which-attention"):
        load_plan("nothing")
    monkeypatch.setattr("experiments.plan.PLANS", tmp_path)
    (tmp_path / "odd.toml").write_text(f'{BEGINNING}recipe = "r.toml"\nseeds = []\nvariants = []\n')
    with pytest.raises(UserError, match=r"odd.toml: \w+: must have 1 or more"):
        load_plan("odd")


def test_only_what_is_missing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.plan.RUNS", tmp_path)
    commands: list[list[str]] = []

    class Training:
        status = 0

        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)

        def poll(self) -> int:
            return self.status

    monkeypatch.setattr(trainings.subprocess, "Popen", Training)
    plan = load_plan("which-attention")
    done = run_of("which-attention", plan.variants[0], 1)
    done.path.mkdir(parents=True)
    done.evaluation_path.write_text(MEASURED)
    trainings.train("which-attention")
    assert len(commands) == len(plan.variants) * len(plan.seeds) - 1
    assert str(done.path) not in " ".join(map(" ".join, commands)) and all("--resume" in one for one in commands)
    Training.status = 2
    with pytest.raises(UserError, match="ended with status 2"):
        trainings.train("which-attention")


@pytest.mark.parametrize("number", ["INT", "TERM"])
def test_an_interrupted_training_has_time_to_save_itself(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.plan.RUNS", tmp_path)
    training = tmp_path / "training.sh"
    training.write_text(
        f"#!/bin/sh\ntrap 'sleep 1; touch {tmp_path}/saved; exit 130' TERM\nkill -{number} $PPID\n"
        "while :; do sleep 0.1; done\n"
    )
    training.chmod(0o755)
    monkeypatch.setattr(trainings.sys, "executable", str(training))
    with pytest.raises(KeyboardInterrupt):
        trainings.train("which-attention")
    assert (tmp_path / "saved").exists()


def test_the_words_that_were_aligned_by_hand() -> None:
    words = read_words()
    assert len({word.word for word in words}) == 200
    for word in words:
        assert word.sure <= word.possible
        assert all(letter < len(word.word) and sound < len(word.sounds) for letter, sound in word.possible)
    (phoned,) = (word for word in words if word.word == "typhoons")
    assert phoned.sure == {(0, 0), (1, 1), (6, 4), (7, 5)}
    assert phoned.possible - phoned.sure == {(2, 2), (3, 2), (4, 3), (5, 3)}


def test_the_alignment_error_rate() -> None:
    word = AlignedWord(
        "phone", ("F", "OW", "N"), frozenset({(2, 1), (3, 2)}), frozenset({(0, 0), (1, 0), (2, 1), (3, 2)})
    )
    perfect = agreement([((1, 0), (2, 1), (3, 2))], [word])
    assert (perfect.error_rate, perfect.precision, perfect.recall) == (0.0, 100.0, 100.0)
    # A = 3 links, 2 of them possible and 1 of these sure; S = 2.
    assert agreement([((0, 0), (2, 1), (4, 2))], [word]).error_rate == pytest.approx(100 * (1 - (1 + 2) / (3 + 2)))
    assert diagonal_links([word]) == [((0, 0), (2, 1), (4, 2))]


def test_the_adding_problem_is_the_papers() -> None:
    inputs, wanted = ADDING.draw(500, 15, _generator())
    numbers, marks = inputs.unbind(2)
    assert numbers.shape == (500, 30) and float(numbers.min()) < -0.99 and float(numbers.max()) > 0.99
    assert torch.equal((marks == 1).sum(1), torch.full((500,), 2)) and not bool((marks[:, 14:29] != 0).any())
    assert bool((marks[:, -1] == -1).all()) and set(marks[:, 0].tolist()) == {-1.0, 1.0}
    assert torch.allclose(wanted, 0.5 + (numbers * (marks == 1)).sum(1) / 4)
    assert (
        ADDING.right(wanted.unsqueeze(1) + 0.039, wanted).all()
        and not ADDING.right(wanted[:, None] + 0.041, wanted).any()
    )


def test_words_run_together_keep_their_letters() -> None:
    pairs = [Pair("ab", "AH B"), Pair("cde", "K D")]
    found = run_together(pairs, 8, random.Random(1))
    assert 8 <= len(found.word) <= 10 and len(found.sounds) == len(found.spans)
    for sound, span in zip(found.sounds, found.spans, strict=True):
        word = next(pair for pair in pairs if pair.source == found.word[slice(*span)])
        assert sound in word.target.split()


def test_which_sounds_of_a_long_source_are_found() -> None:
    source = LongSource("abcd", ("AH", "B", "K", "D"), ((0, 2), (0, 2), (2, 4), (2, 4)))
    assert measuring._found(source, "B K T D").tolist() == [0, 1, 1, 1]
    weights = np.array(
        [[0.5, 0.25, 0.25, 0, 0], [0, 0, 0, 0, 1], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    )
    assert measuring._on_words(source, weights).tolist() == [0.75, 0, 0.5, 1]


def test_variants_are_compared_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, list[list[str]]] = {}
    monkeypatch.setattr(
        comparison, "write_table", lambda page, name, headings, rows: written.update({name: [headings, *rows]})
    )
    plan = load_plan("vector-size")
    values = {"wer": [40.0, 60.0], "per": [10.0, 20.0], "perplexity": [2.0, 2.5]}
    found = [
        Found(plan.variants[0], values | {"aer": [3.0, 5.0]}, {}, {}, 1000, {}),
        Found(plan.variants[1], values | {"aer": []}, {}, {}, 2000, {"tokens_per_second": 500.0, "step_ms": 0.5}),
        Found(
            plan.variants[2],
            {"wer": [40.0], "per": [10.0], "perplexity": [2.0], "aer": []},
            {},
            {"wer": (39.0, 41.5)},
            3000,
            {},
        ),
    ]
    comparison._write("vector-size", plan, found)
    headings, base, other, single = written["vector-size"]
    assert headings[2:6] == ["WER (%)", "PER (%)", "perplexity", "AER (%)"] and headings[-1] == "step, ms"
    assert base[1:4] == ["2", "50.0 (40.0 to 60.0)", "15.0 (10.0 to 20.0)"] and base[-1] == ""
    assert other[0] == "without attention: one vector of 64" and other[5:] == ["", "2,000", "500", "0.50"]
    assert single[1:5] == ["1", "40.0 (39.0 to 41.5)", "10.0", "2.000"]


def test_hours_are_those_of_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 words of 8 letters and an end, 8 times."""
    recipe = Path("recipes/copy").resolve()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.plan.PLANS", tmp_path)
    variant = '[[variants]]\nname = "{0}"\nwhat = "{0}"\ngroup = "g"\n'
    (tmp_path / "toy.toml").write_text(
        f'{BEGINNING}recipe = "{recipe}"\nseeds = [1, 2]\n' + variant.format("whole") + variant.format("done")
    )
    for seed in (1, 2):
        done = run_of("toy", load_plan("toy").variants[1], seed)
        done.path.mkdir(parents=True)
        done.evaluation_path.write_text(MEASURED)
    rows: list[list[str]] = []
    monkeypatch.setattr(hours, "write_table", lambda page, name, headings, found: rows.extend(found))
    monkeypatch.setattr(hours, "training_of", lambda *_: lambda: 8.0)
    hours.reckon(["toy"])
    ((name, what, seeds, speed, one, all_of_them),) = rows
    assert (name, what, seeds, speed) == ("toy", "whole", "1, 2", "8")
    assert float(one) == pytest.approx(4000 * 9 * 8 / 8 / 3600, rel=0.02)
    assert float(all_of_them) == pytest.approx(2 * float(one), rel=0.01)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_training_says_what_came_of_it(task: Task) -> None:
    found = learn(replace(task, lag=4, num_steps=3), KINDS[1], "adam", clips=True, seed=1)
    assert found["solved_at"] is None and 0 <= found["accuracy"] <= 1 and found["largest_norm"] > 0
    assert len(found["before"]["norms"]) == len(found["after"]["norms"]) >= 8
    assert found["before"] != found["after"] and len(found["before"]["eigenvalues"]) == 64


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_gradients_are_those_of_finite_differences(kind: Kind, task: Task) -> None:
    """Of the loss, by each number of a state that is put in the place of the one k steps back."""
    torch.manual_seed(0)
    network = Network(kind, task).double()
    inputs, wanted = (given.double() if given.is_floating_point() else given for given in task.draw(2, 4, _generator()))
    found, length = network.gradient_norms(inputs, wanted), inputs.shape[1]
    assert found.shape == (2, length - 1) and torch.allclose(found[:, 0], torch.ones(2).double())
    norms = []
    for back in (0, 3):
        _, state = network.recurrent(inputs[:1, : length - back])
        parts = state if isinstance(state, tuple) else (state,)
        squares = 0.0
        for part in parts:
            for place in range(part.shape[-1]):
                losses = []
                for change in (1e-6, -1e-6):
                    with torch.no_grad():
                        part[0, 0, place] += change
                        rest = inputs[:1, length - back :]
                        last = network.recurrent(rest, state)[0][:, -1] if back else parts[0][0]
                        losses.append(float(task.losses(network.output(last), wanted[:1])))
                        part[0, 0, place] -= change
                squares += ((losses[0] - losses[1]) / 2e-6) ** 2
        norms.append(np.sqrt(squares))
    assert float(found[0, 3]) == pytest.approx(norms[1] / norms[0], rel=1e-4)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_table_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end -->\nafter\n<!-- other -->\n<!-- end -->\n")
    for _ in range(2):
        write_table("page", "table", ["a", "b"], [["1", "2"]])
    table = "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert page.read_text() == f"before\n<!-- table -->\n{table}\n<!-- end -->\nafter\n<!-- other -->\n<!-- end -->\n"
