"""The training loop: `experiment` prepares a run, `trainer` trains it. Begin with `Trainer.train`."""
