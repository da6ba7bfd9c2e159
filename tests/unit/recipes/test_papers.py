"""Tests of the papers' experiments: plans train only missing runs, and gradients equal finite differences."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.recipes.papers import alignment, harness, long_sources
from attendant.recipes.papers.harness import PLANS, load_plan
from attendant.recipes.papers.long_sources import LongSource, run_together
from attendant.recipes.papers.memory import ADDING, KINDS, TASKS, Kind, Network, Task
from attendant.runtime.errors import UserError
from attendant.training.data.pairs import Pair
from attendant.training.run.directory import Run
from tests.paths import ROOT

EVALUATION = '[{"metric": "wer", "value": 30.0, "protocol": "greedy", "num_examples": 9}]'


@pytest.fixture(autouse=True)
def _terminated_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def end(run: Run) -> None:
    run.path.mkdir(parents=True)
    run.evaluation_path.write_text(EVALUATION)


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.toml")))
def test_every_run_of_a_plan_is_another_recipe(name: str) -> None:
    plan = load_plan(name)
    runs = [(variant, seed) for variant in plan.variants for seed in plan.seeds]
    assert len({plan.resolved(*run).to_text() for run in runs}) == len(runs) > 1
    assert len({plan.run(*run).path for run in runs}) == len(runs)


@pytest.mark.parametrize("number", ["INT", "TERM"])
def test_only_missing_runs_are_trained_and_an_interrupted_one_saves_itself(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third run of a plan interrupts its parent process. Later, a run fails."""
    monkeypatch.setattr(harness, "RUNS", tmp_path)
    plan = load_plan("vector-size")
    runs = [plan.run(variant, seed) for seed in plan.seeds for variant in plan.variants]
    end(runs[0])
    training = tmp_path / "training.sh"
    training.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\ncase "$*" in *{runs[2].path}*)\n'
        f"trap 'sleep 0.5; touch {tmp_path}/saved; exit 130' TERM\nsleep 0.5\nkill -{number} $PPID\n"
        "while :; do sleep 0.1; done ;; esac\n"
    )
    training.chmod(0o755)
    monkeypatch.setattr(harness.sys, "executable", str(training))
    with pytest.raises(KeyboardInterrupt):
        harness.train(plan)
    assert (tmp_path / "saved").exists()
    commands = (tmp_path / "commands").read_text().splitlines()
    assert [str(run.path) in command for run, command in zip(runs[1:3], commands, strict=True)] == [True, True]
    assert all("--resume" in command and "papers/pronunciation" in command for command in commands)
    training.write_text("#!/bin/sh\nexit 2\n")
    with pytest.raises(UserError, match="ended with status 2"):
        harness.train(plan)


def test_hand_aligned_words_are_read_with_valid_links() -> None:
    words = {word.word: word for word in alignment.read_words()}
    assert len(words) == 200
    for word in words.values():
        assert word.sure <= word.possible
        assert all(letter < len(word.word) and sound < len(word.sounds) for letter, sound in word.possible)
    assert words["typhoons"].sure == {(0, 0), (1, 1), (6, 4), (7, 5)}
    assert words["typhoons"].possible - words["typhoons"].sure == {(2, 2), (3, 2), (4, 3), (5, 3)}


def test_masking_a_position_without_weight_does_not_change_the_answer() -> None:
    model = alignment.open_model(ROOT / "models" / "g2p-en")
    sources = model.source_ids(["knife", "phoneme"])
    weights, changed = alignment.changed_by_masking(model, sources)
    assert [len(needed) for needed in changed] == [len(source) for source in sources]
    for own, needed in zip(weights, changed, strict=True):
        assert any(needed) and not all(needed)
        assert not any(need for need, weight in zip(needed, own.max(axis=0), strict=True) if weight < 1e-3)


def test_a_model_that_lacks_the_sounds_is_refused() -> None:
    """The sounds of the words have no stress marks, but this model's symbols do."""
    words = [word for word in alignment.read_words() if word.word == "typhoons"]
    with pytest.raises(UserError, match="no symbol for AY of typhoons"):
        alignment.attended(alignment.open_model(ROOT / "models" / "g2p-en"), words)


def test_the_alignment_error_rate_follows_its_formula() -> None:
    sure = frozenset({(2, 1), (3, 2)})
    word = alignment.AlignedWord("phone", ("F", "OW", "N"), sure, sure | {(0, 0), (1, 0)})
    perfect = alignment.agreement([((1, 0), (2, 1), (3, 2))], [word])
    assert (perfect.error_rate, perfect.precision, perfect.recall) == (0.0, 100.0, 100.0)
    # A = 3 links, 2 of them possible and 1 of these sure; S = 2.
    assert alignment.agreement([((0, 0), (2, 1), (4, 2))], [word]).error_rate == pytest.approx(
        100 * (1 - (1 + 2) / (3 + 2))
    )
    assert alignment.diagonal_links([word]) == [((0, 0), (2, 1), (4, 2))]


def test_long_sources_are_joined_words_and_are_scored_by_word() -> None:
    pairs = [Pair("ab", "AH B"), Pair("cde", "K D")]
    source = run_together(pairs, 8, random.Random(1))
    assert 8 <= len(source.word) <= 10 and len(source.sounds) == len(source.spans)
    for sound, span in zip(source.sounds, source.spans, strict=True):
        assert sound in next(pair for pair in pairs if pair.source == source.word[slice(*span)]).target.split()
    source = LongSource("abcd", ("AH", "B", "K", "D"), ((0, 2), (0, 2), (2, 4), (2, 4)))
    assert long_sources.sounds_in_output(source, "B K T D").tolist() == [0, 1, 1, 1]
    weights = np.array(
        [[0.5, 0.25, 0.25, 0, 0], [0, 0, 0, 0, 1], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    )
    assert long_sources.attention_on_words(source, weights).tolist() == [0.75, 0, 0.5, 1]


def test_the_adding_problem_is_that_of_the_paper() -> None:
    inputs, wanted = ADDING.draw(500, 15, torch.Generator().manual_seed(0))
    numbers, marks = inputs.unbind(2)
    assert numbers.shape == (500, 30) and float(numbers.min()) < -0.99 and float(numbers.max()) > 0.99
    assert torch.equal((marks == 1).sum(1), torch.full((500,), 2)) and not bool((marks[:, 14:29] != 0).any())
    assert bool((marks[:, -1] == -1).all()) and set(marks[:, 0].tolist()) == {-1.0, 1.0}
    assert torch.allclose(wanted, 0.5 + (numbers * (marks == 1)).sum(1) / 4)
    for error, is_right in ((0.039, True), (0.041, False)):
        assert bool((ADDING.right(wanted.unsqueeze(1) + error, wanted) == is_right).all())


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_gradients_are_those_of_finite_differences(kind: Kind, task: Task) -> None:
    """Changes each number of the state k steps before the end, and compares the norms of the loss's changes."""
    torch.manual_seed(0)
    network = Network(kind, task).double()
    drawn = task.draw(2, 4, torch.Generator().manual_seed(0))
    inputs, wanted = (tensor.double() if tensor.is_floating_point() else tensor for tensor in drawn)
    gradients, length = network.gradient_norms(inputs, wanted), inputs.shape[1]
    assert gradients.shape == (2, length - 1) and torch.allclose(gradients[:, 0], torch.ones(2).double())
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
    assert float(gradients[0, 3]) == pytest.approx(norms[1] / norms[0], rel=1e-4)
