"""Peers learn our pairs, for their time, and go on from where they were stopped."""

import shutil
import signal
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from experiments.peers import tasks, training
from experiments.peers.tasks import Contest, Peer, Peers, Task, load_peers
from experiments.peers.training import Progress
from tests.paths import ROOT

LEARNER = """\
import pathlib, signal, sys
model, load = sys.argv[1:]
signal.signal(signal.SIGINT, lambda *_: sys.exit())
folder = pathlib.Path(model)
folder.mkdir()
(folder / "begun").write_text(load)
for step in range(10**9):
    if step % 10**6 == 0:
        (folder / f"{step}.ckpt").write_text("weights")
"""


@pytest.fixture
def contest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Contest:
    """A task of three short pairs and a long one."""
    recipe = (ROOT / "recipes/g2p-cmudict/recipe.toml").read_text().replace('fetch = "cmudict"', "")
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"badge\tB AE JH\ncab\tK AE B\n{'a' * 200}\tEY\njab\tJH AE B\n")
        recipe += f"[data.{split}]\ntsv = '{tmp_path}/{split}.tsv'\n"
    (tmp_path / "recipe.toml").write_text(recipe)
    monkeypatch.setattr(tasks, "RUNS", tmp_path / "peers")
    monkeypatch.setattr(tasks, "FOLDER", tmp_path)
    monkeypatch.setattr(training, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(Peer, "python", lambda _: shutil.which("python3"))
    (tmp_path / "learner.py").write_text(LEARNER)
    (tmp_path / "slow.yaml").write_text("load: $load")
    task = Task(
        question="?",
        recipe=tmp_path / "recipe.toml",
        bundle=ROOT / "models" / "g2p-en",
        metric="wer",
        peers=("slow",),
        processor_seconds=1,
        values={"script": f"{tmp_path}/learner.py"},
    )
    return Contest("say", task)


PEER = Peer(what="a peer", environment="", train=("$script", "$model", "$load"), translate=(), checkpoints="*.ckpt")


def test_pairs_are_written_in_our_symbols(contest: Contest) -> None:
    contest.write_data()
    data = contest.folder / "data"
    assert (data / "train.src").read_text() == "b a d g e\nc a b\nj a b\n"
    assert (data / "validation.tgt").read_text() == "B AE JH\nK AE B\nJH AE B\n"
    words = (data / "words.txt").read_text().splitlines()
    assert {"b", "JH"} < set(words) and len(words) == len(set(words)) and "<pad>" not in words


def test_a_peer_has_its_time_and_no_more(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "load_peers", lambda: Peers(tasks={"say": contest.task}, peers={"slow": PEER}))
    monkeypatch.setattr(training, "contests", lambda: [contest])
    folder = contest.folder / "slow"
    training.train_peers()
    progress = Progress.of(folder)
    assert progress.ended and 1 <= progress.processor_seconds < 10
    training.train_peers()
    assert Progress.of(folder) == progress and not (folder / "model-1").exists()


def test_an_interrupted_peer_goes_on_from_its_last_checkpoint(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "load_peers", lambda: Peers(tasks={"say": contest.task}, peers={"slow": PEER}))
    monkeypatch.setattr(training, "contests", lambda: [contest])
    folder = contest.folder / "slow"

    def interrupted(_: object) -> float:
        while training.last_checkpoint(folder, PEER) is None:
            pass
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "cpu_seconds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            training.train_peers()
    assert (folder / "progress.json").exists()
    last = training.last_checkpoint(folder, PEER)
    assert not Progress.of(folder).ended
    training.train_peers()
    assert (folder / "model-1" / "begun").read_text() == str(last)
    newest = training.last_checkpoint(folder, PEER)
    assert newest is not None and newest.parent == folder / "model-1"


def test_a_peer_is_interrupted_where_interrupts_are_ignored(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = """\
import pathlib, sys, time
model = pathlib.Path(sys.argv[1])
try:
    model.mkdir()
    time.sleep(1000)
except KeyboardInterrupt:
    (model / "end.ckpt").write_text("weights")
"""
    peer = PEER.model_copy(update={"train": ("-c", saving, "$model")})
    monkeypatch.setattr(training, "load_peers", lambda: Peers(tasks={"say": contest.task}, peers={"slow": peer}))
    monkeypatch.setattr(training, "contests", lambda: [contest])
    model = contest.folder / "slow" / "model-0"
    # Its time is over as soon as it has begun.
    monkeypatch.setattr(training, "cpu_seconds", lambda _: 2.0 if model.exists() else 0.0)
    monkeypatch.setattr(training, "SAVING_SECONDS", 5.0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        training.train_peers()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (model / "end.ckpt").exists()


def test_a_training_that_ends_by_itself_is_told(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = PEER.model_copy(update={"train": ("-c", "1/0")})
    monkeypatch.setattr(training, "load_peers", lambda: Peers(tasks={"say": contest.task}, peers={"slow": broken}))
    monkeypatch.setattr(training, "contests", lambda: [contest])
    with pytest.raises(UserError, match=r"training\.log says why"):
        training.train_peers()
    assert "ZeroDivisionError" in (contest.folder / "slow" / "training.log").read_text()


def test_every_peer_of_a_task_is_known_and_has_a_configuration() -> None:
    known = load_peers()
    for task in known.tasks.values():
        assert set(task.peers) <= set(known.peers)
    assert all((tasks.FOLDER / f"{name}.yaml").is_file() for name in known.peers)
