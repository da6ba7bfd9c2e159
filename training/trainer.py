"""The training loop: step, look, save, until a limit. What to train on is handed in; where it stands is a value."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from runtime.errors import UserError
from training.checkpoint import LAST, TrainingState, checkpoint_path, remove_strays, resume_checkpoint, save_checkpoint
from training.data.batches import BatchPlan, collate
from training.data.corpus import Corpus
from training.interruption import Interruption
from training.journal import Journal
from training.loss import smoothed_cross_entropy
from training.metrics import is_better
from training.model import Seq2Seq
from training.optimizer import make_optimizer
from training.progress import StepProgress, TrainingProgress
from training.recipe import Recipe
from training.run import Run
from training.schedule import Schedule
from training.validation import Validator


@dataclass(slots=True)
class Window:
    """What happened since the last line of the journal."""

    loss: float = 0.0
    num_tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """One training of one run.

    Its course is a function of the recipe and the data alone, on a CPU with a given number of threads, unless a time
    limit ends or anneals it: a run that was killed and resumed has the same weights, bit for bit.
    """

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        model: Seq2Seq,
        corpus: Corpus,
        validator: Validator,
        *,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Resumes from the run's last checkpoint where there is one."""
        self._run = run
        self._recipe = recipe
        self._config = recipe.training
        self._device = device
        self._model = model.to(device)
        self._corpus = corpus
        self._validator = validator
        self._plan = BatchPlan(corpus, recipe.batches, recipe.seed)
        self._optimizer = make_optimizer(recipe.optimizer, self._model.parameters())
        self._max_steps = self._step_limit()
        self._schedule = Schedule(recipe.schedule, max_steps=self._max_steps, max_seconds=self._config.max_seconds)
        self._clock = clock
        self._window = Window()
        self.state = self._resume()
        self._epoch_batches = self._plan.epoch(self.state.epoch)
        # Where the clock stood when the training had taken no time yet.
        self._clock_zero = clock() - self.state.seconds
        self._saved_seconds = self.state.seconds

    @property
    def num_batches(self) -> int:
        """Of an epoch."""
        return self._plan.num_batches

    def train(self, journal: Journal, progress: TrainingProgress) -> TrainingState:
        """Trains until a limit.

        Raises:
            UserError: the loss or the gradient is no number any more; the last checkpoint stands.
            KeyboardInterrupt: after Ctrl-C or SIGTERM; the step was finished and saved.
        """
        self._model.train()
        with Interruption() as interruption:
            while True:
                if interruption.requested:
                    self._save(best=False)
                    progress.say(f"stopped at step {self.state.step}; --resume goes on from there")
                    raise KeyboardInterrupt
                if self._validation_is_due():
                    self._validate(journal, progress)
                if self._is_over():
                    return self.state
                self._step(journal, progress)
                if self._checkpoint_is_due():
                    self._save(best=False)

    def _step(self, journal: Journal, progress: TrainingProgress) -> None:
        state, started = self.state, self._clock()
        batch = collate(self._corpus, self._epoch_batches[state.batch], self._model.start_id).to(self._device)
        rate = self._recipe.optimizer.learning_rate * self._schedule.factor(state.step, state.seconds)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._model(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
        total = smoothed_cross_entropy(logits, batch.target_ids, label_smoothing=self._config.label_smoothing)
        loss = total / batch.num_target_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._config.clip_norm or math.inf).item()
        self._guard(loss.item(), norm, rate)
        self._optimizer.step()
        state.step += 1
        state.batch += 1
        if state.batch == self.num_batches:
            state.epoch, state.batch = state.epoch + 1, 0
            self._epoch_batches = self._plan.epoch(state.epoch)
        state.seconds = self._clock() - self._clock_zero
        self._note(journal, progress, total.item(), batch.num_target_tokens, self._clock() - started, rate, norm)

    def _guard(self, loss: float, norm: float, rate: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        state = self.state
        raise UserError(
            f"step {state.step + 1} (epoch {state.epoch + 1}, batch {state.batch + 1} of {self.num_batches}): the loss "
            f"is {loss:g} and the gradient's norm {norm:g}. Lower optimizer.learning_rate (this step's: {rate:.3g}), "
            f"lengthen schedule.warmup_steps or lower training.clip_norm; --resume goes on from the last checkpoint"
        )

    def _note(
        self,
        journal: Journal,
        progress: TrainingProgress,
        total: float,
        num_tokens: int,
        seconds: float,
        rate: float,
        norm: float,
    ) -> None:
        state, window = self.state, self._window
        window.loss += total
        window.num_tokens += num_tokens
        window.seconds += seconds
        mean, speed = window.loss / window.num_tokens, window.num_tokens / max(window.seconds, 1e-9)
        at = StepProgress(
            epoch=state.epoch + (state.batch > 0),
            batch=state.batch or self.num_batches,
            num_batches=self.num_batches,
            loss=mean,
            rate=speed,
            seconds_left=self._seconds_left(),
        )
        progress.step(at)
        if state.step % self._config.log_every_steps == 0:
            values = {"loss": mean, "learning_rate": rate, "gradient_norm": norm, "tokens_per_second": speed}
            journal.write("train", step=state.step, epoch=state.epoch, values=values | {"seconds": state.seconds})
            self._window = Window()

    def _validate(self, journal: Journal, progress: TrainingProgress) -> None:
        state, metric = self.state, self._recipe.validation.metric
        values = self._validator.validate(self._model, self._device)
        state.seconds = self._clock() - self._clock_zero
        state.validated_step = state.step
        improved = is_better(metric, values[metric], state.best_value)
        if improved:
            state.best_step, state.best_value = state.step, values[metric]
        state.num_validations_without_best = 0 if improved else state.num_validations_without_best + 1
        self._schedule.validated(improved=improved)
        self._save(best=improved)
        journal.write("validation", step=state.step, epoch=state.epoch, values=values | {"seconds": state.seconds})
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        epochs = state.epoch + state.batch / self.num_batches
        progress.say(f"epoch {epochs:.3g}, step {state.step}: validation {shown}" + (" (best)" if improved else ""))

    def _validation_is_due(self) -> bool:
        state, every = self.state, self._recipe.validation.every_steps
        if state.step in (0, state.validated_step):
            return False
        return self._limit_reached() or (state.batch == 0 if every is None else state.step % every == 0)

    def _limit_reached(self) -> bool:
        state, config = self.state, self._config
        out_of_steps = self._max_steps is not None and state.step >= self._max_steps
        return out_of_steps or (config.max_seconds is not None and state.seconds >= config.max_seconds)

    def _is_over(self) -> bool:
        patience = self._recipe.validation.patience
        return self._limit_reached() or (patience is not None and self.state.num_validations_without_best >= patience)

    def _checkpoint_is_due(self) -> bool:
        if self._validation_is_due():
            return False  # it leaves one itself
        every = self._config.checkpoint_every_steps
        by_steps = every is not None and self.state.step % every == 0
        return by_steps or self.state.seconds - self._saved_seconds >= self._config.checkpoint_every_seconds

    def _save(self, *, best: bool) -> None:
        self.state.plateau_factor = self._schedule.plateau_factor
        self.state.num_flat_validations = self._schedule.num_flat_validations
        save_checkpoint(self._run, self._model, self._optimizer, self.state, best=best)
        self._saved_seconds = self.state.seconds

    def _resume(self) -> TrainingState:
        remove_strays(self._run)
        last = checkpoint_path(self._run, LAST)
        if last is None:
            return TrainingState()
        state = resume_checkpoint(last, self._model, self._optimizer)
        self._schedule.plateau_factor = state.plateau_factor
        self._schedule.num_flat_validations = state.num_flat_validations
        return state

    def _step_limit(self) -> int | None:
        by_epochs = None if self._config.max_epochs is None else self._config.max_epochs * self.num_batches
        limits = [limit for limit in (self._config.max_steps, by_epochs) if limit is not None]
        return min(limits, default=None)

    def _seconds_left(self) -> float | None:
        state, limits = self.state, []
        if self._max_steps is not None:
            limits.append(state.seconds / state.step * (self._max_steps - state.step))
        if self._config.max_seconds is not None:
            limits.append(self._config.max_seconds - state.seconds)
        return max(0.0, min(limits)) if limits else None
