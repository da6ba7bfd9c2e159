"""The same loop in PyTorch, eager: python -m benchmarks.peers.torch_worker HIDDEN_SIZE."""

import sys

import torch
from torch import Tensor

from benchmarks.decoding.job import Job, Sources, answer_jobs, one_by_one
from benchmarks.peers.plain_loop import BOS_ID
from benchmarks.peers.plain_model import plain_model
from benchmarks.training.workload import QUICK, Workload


def main(hidden_size: str) -> None:
    workload = next(one for one in (Workload(), QUICK) if one.hidden_size == int(hidden_size))
    torch.set_num_threads(1)
    encoder, step = plain_model(workload)

    def decode(sources: Sources, job: Job) -> Tensor:
        """Ids [B, T] of the best hypothesis."""
        beam, num_sources = job.beam_size, len(sources)
        memory, keys, hidden, cell = encoder(torch.tensor(sources))
        memory, keys = memory.repeat_interleave(beam, 0), keys.repeat_interleave(beam, 0)
        hidden, cell = hidden.repeat_interleave(beam, 1), cell.repeat_interleave(beam, 1)
        feeding = torch.zeros(len(memory), workload.hidden_size)
        previous = torch.full((len(memory),), BOS_ID)
        # At first all of a source's rows are the same: only one of them counts.
        scores = torch.tensor([0.0] + [-torch.inf] * (beam - 1)).repeat(num_sources, 1)
        found = torch.zeros(len(memory), 0, dtype=torch.int64)
        first = torch.arange(num_sources).unsqueeze(1) * beam
        for _ in range(job.num_tokens):
            log_probs, ids, hidden, cell, feeding = step(previous, hidden, cell, feeding, memory, keys)
            if beam == 1:
                previous = ids[:, 0]
            else:
                pool = (scores.unsqueeze(2) + log_probs.view(num_sources, beam, -1)).view(num_sources, -1)
                scores, best = pool.topk(beam, 1)
                rows = (best // log_probs.shape[1] + first).flatten()
                previous = ids.view(num_sources, -1).gather(1, best).flatten()
                hidden, cell, feeding, found = hidden[:, rows], cell[:, rows], feeding[rows], found[rows]
            found = torch.cat([found, previous.unsqueeze(1)], 1)
        return found.view(num_sources, beam, -1)[:, 0]

    with torch.inference_mode():
        answer_jobs(lambda job: one_by_one(job, lambda batch: decode(batch, job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
