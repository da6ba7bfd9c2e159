"""Training: from a recipe to a run directory. It may import `attendant.runtime`, and nothing else of the project.

Begin with `loop/trainer.py`, whose loop is read from top to bottom. Each room imports only from those below it:

    commands        attendant train, check, evaluate, report, average, label, fetch
    library         the same from Python: attendant.train, evaluate, report
    report          runs shown as one page
    loop            the training loop, one update, the preparation of a run, the journal
    run             the run directory: checkpoints, corpora, opening a run for evaluation or export
    recipe.py       the recipe: a table per component; `recipe_choice.py` chooses one for files of pairs
    evaluation      outputs of a model: decoding, metrics, intervals
    optimization.py optimizer, schedule, moving average
    data            pairs, tokenizers, corpora, batches; fetchers that build data
    model           the architectures; `reference.py` is the plain training step
    kernels         a training step's arithmetic, and the hardware it runs on

One batch's way: `loop/trainer.py` takes its pairs from the plan of `data/batches.py`, which pads them into tensors too.
`loop/update.py` computes the loss and its gradient: `model/seq2seq.py` runs `model/encoder.py` and `model/decoder.py`
up to the readouts, and `kernels/loss.py` continues to the loss. `loop/trainer.py` checks both, `loop/update.py` moves
the weights, `loop/journal.py` reports the step, and `run/checkpoint.py` saves when it is due.
"""

import os

# Number of times that OpenMP's threads look for work before they sleep; OpenMP reads it when torch is loaded. A step is
# thousands of short pieces of work. Threads that sleep at once are woken for each, which takes a fifth of the time and
# more. By default they would look 30 times as often, and disturb each other if another process uses the cores too.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
