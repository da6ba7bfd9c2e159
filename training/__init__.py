"""Training: from a recipe to a run directory. It may import `attendant.runtime`, and nothing else of the project.

Its rooms, each of which imports only from those below it:

    commands        what `python -m training` does
    report          a run, or several, shown as one page
    assessment      runs and bundles, by their paths, measured on held-out data
    loop            the training loop
    run             the run directory: checkpoints, resumption, what opens a run
    recipe          the recipe: a table per component
    evaluation      a model in memory: decoding, metrics, intervals
    optimization    optimizer, schedule, moving average
    data            pairs, tokenizers, corpora, batches; fetchers that build data
    model           the architectures; `reference.py` is the plain training step
    kernels         a training step's arithmetic

One batch's way: `loop/trainer.py` takes its pairs from the plan of `data/batches.py`, which pads them into tensors too.
`loop/update.py` asks for the loss and its gradient: `model/seq2seq.py` runs `model/encoder.py` and `model/decoder.py`
up to the readouts, and `kernels/output_loss.py` goes on to the loss. `loop/guard.py` checks both, `loop/update.py`
moves the weights, `loop/journal.py` reports the step, and `run/checkpoint.py` saves when it is due.
"""
