"""What the peers have learned beside our models: the table of docs/experiments/peers.md."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from attendant.runtime.errors import UserError
from attendant.training.data.pairs import Example, sample_evenly
from attendant.training.evaluation.bootstrap import confidence_interval, interval_text
from attendant.training.evaluation.metrics import take_statistics
from benchmarks import ROOT
from experiments.pages import write_table
from experiments.peers.tasks import OUR_DECODING, Contest, Peer, answers_of, contests, load_peers, symbols
from experiments.peers.training import Progress, last_checkpoint

Decode = Callable[[Sequence[Example], int], tuple[list[str], float]]
"""Symbols that are answers, a line each, of examples that are decoded so many at a time; and the processor seconds."""

TOGETHER: Final = 32
NUM_ALONE: Final = 100
ALONE_PART: Final = 10
"""At most 1/10 of the examples is decoded one by one, too."""

HEADINGS: Final = ("task", "model", "parameters", "metric", "value", "95 % interval", "one answer, ms")
COUNT: Final = """\
import sys, torch
state = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
parts = [state["model_state"]] if "model_state" in state else [state["model"], state["generator"]]
# Shared weights once; a table of positions is not learned.
learned = {one.data_ptr(): one for part in parts for name, one in part.items() if not name.endswith(".pe")}
print(sum(one.numel() for one in learned.values()))
"""


def show_peers() -> None:
    """Decodes the test split, or a part of it, with every model that has had its time, and writes the table.

    Raises:
        UserError: a model can't be opened, or fails.
    """
    known = load_peers().peers
    rows: list[list[str]] = []
    for contest in contests():
        size = contest.bundle.manifest.model["num_parameters"]
        rows.append(_row(contest, "Attendant", size, partial(_ours, contest)))
        for name in contest.task.peers:
            if Progress.of(contest.folder / name).ended:
                num_tested = contest.task.tested.get(name)
                rows.append(_row(contest, known[name].what, *_peer(contest, name, known[name]), num_tested))
    write_table("peers", "table", HEADINGS, rows)


def _row(contest: Contest, what: str, num_parameters: int, decode: Decode, num_tested: int | None = None) -> list[str]:
    """`num_tested`: of so many examples; None: of the whole test split."""
    examples, target = contest.tests(), contest.bundle.target_tokenizer
    if num_tested is not None:
        examples, what = sample_evenly(examples, num_tested), f"{what}; {num_tested:,} examples"
    metric = contest.task.metric
    lines, _ = decode(examples, TOGETHER)
    texts = [target.decode_tokens(line.split()) for line in lines]
    taken = take_statistics(metric, texts, [example.references for example in examples])
    interval = interval_text(confidence_interval(taken))
    # What it takes to start is in both, and goes out by the difference.
    num_alone = min(NUM_ALONE, len(examples) // ALONE_PART)
    alone = sample_evenly(examples, num_alone + 1)
    milliseconds = 1000 * (decode(alone, 1)[1] - decode(alone[:1], 1)[1]) / num_alone
    found = f"{taken.value:.2f}", interval, f"{milliseconds:.1f}"
    return [contest.task.question, what, f"{num_parameters:,}", metric, *found]


def _ours(contest: Contest, examples: Sequence[Example], together: int) -> tuple[list[str], float]:
    command = [sys.executable, "-c", OUR_DECODING, str(ROOT / contest.task.bundle), str(together)]
    return answers_of(command, [example.source for example in examples])


def _peer(contest: Contest, name: str, peer: Peer) -> tuple[int, Decode]:
    """The number of its parameters, and how it decodes."""
    last, source = last_checkpoint(contest.folder / name, peer), contest.bundle.source_tokenizer
    if last is None:
        raise UserError(f"{contest.folder / name}: its checkpoint has gone: remove the folder, and train it again")
    (counted,), _ = answers_of([peer.python(), "-c", COUNT, str(last)], [])

    def decode(examples: Sequence[Example], together: int) -> tuple[list[str], float]:
        contest.configure(name, model=last.parent, load=last, decoding_batch=together)
        written = contest.folder / name / "answers.txt"
        written.unlink(missing_ok=True)
        values = {"load": last, "decoding_batch": together, "answers": written}
        command = [peer.python(), *contest.filled(peer.translate, name, **values)]
        printed, seconds = answers_of(command, [" ".join(symbols(source, one.source)) for one in examples])
        lines = written.read_text(encoding="utf-8").split("\n")[:-1] if written.exists() else printed
        # Before the answers there may be what it says of itself.
        return lines[-len(examples) :], seconds

    return int(counted), decode
