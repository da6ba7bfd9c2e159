"""The training loop: update, validate, save, until a limit is reached. Its state is a value, `TrainingState`."""

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, Literal

import torch

from attendant.runtime.errors import UserError
from attendant.runtime.files import CantWrite
from attendant.training.data.batches import BatchPlan, collate
from attendant.training.evaluation.metrics import is_better
from attendant.training.kernels.hardware import choose_precision
from attendant.training.loop.callbacks import Record, StepProgress, TrainingCallback, TrainingStart
from attendant.training.loop.experiment import Experiment
from attendant.training.loop.journal import Journal, StepSums
from attendant.training.loop.update import Gradient, Processes, Updater
from attendant.training.optimization import MovingAverage, Schedule, make_optimizer
from attendant.training.recipe import TrainerConfig
from attendant.training.run import checkpoint

SMOOTHING = 0.95  # Smoothing of the loss that is compared with its lowest value: about the last twenty updates.
REMEDY = (
    "Lower optimizer.learning_rate, lengthen schedule.warmup_steps or lower training.clip_norm; --resume goes on from "
    "the last checkpoint"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Trainer:
    """One training of one run.

    On a CPU with a fixed number of threads, it depends on the recipe and the data alone, unless a time limit ends or
    anneals it: a run that was killed and resumed has the same weights, bit for bit. Several processes share each batch:
    they match single-process training up to rounding and dropout's random numbers.
    """

    def __init__(
        self,
        experiment: Experiment,
        processes: Processes | None = None,
        callbacks: Sequence[TrainingCallback] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Resumes from the run's last checkpoint if there is one. The first process writes the run's journal.

        Raises:
            UserError: the device can't compute in the recipe's precision; a damaged checkpoint.
        """
        self._run = experiment.run
        self._recipe = recipe = experiment.recipe
        self._config = config = recipe.training
        self._device = device = experiment.device
        self._processes = processes or Processes()
        self._journal = Journal(experiment.run) if self._processes.is_first else None
        self._callbacks = callbacks
        self._watching = [*([self._journal] if self._journal else []), *callbacks]
        self._model = experiment.model.to(device)
        self._corpus = experiment.corpus
        self._validator = experiment.validator
        self._plan = BatchPlan(self._corpus, recipe.batches, recipe.seed)
        self._average = MovingAverage(self._model, config.ema_decay) if config.ema_decay is not None else None
        self.precision = choose_precision(config.precision, device)
        optimizer = make_optimizer(recipe.optimizer, self._model.parameters())
        self._updater = Updater(
            self._model, optimizer, config, precision=self.precision, device=device, processes=self._processes
        )
        self._learner = checkpoint.Learner(
            model=self._model,
            optimizer=optimizer,
            averaged=self._average.model if self._average else None,
            scaler=self._updater.scaler,
        )
        self._max_steps = config.step_limit(self.num_batches)
        self._schedule = Schedule(
            recipe.schedule,
            steps_of_an_epoch=config.steps_of_an_epoch(self.num_batches),
            max_steps=self._max_steps,
            max_seconds=config.max_seconds,
        )
        self._clock = clock
        self.state = self._resume()
        self._guard = Guard(config, self.state)
        self._epoch_batches = self._plan.epoch(self.state.epoch)
        self._sums = StepSums()
        # The clock's value at which the training would have begun without interruptions.
        self._clock_zero = clock() - self.state.seconds
        self._saved_step, self._saved_seconds = self.state.step, self.state.seconds
        self._first_step, self._first_seconds = self.state.step, self.state.seconds

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self._plan.num_batches

    def train(self) -> checkpoint.TrainingState:
        """Trains until a limit.

        Raises:
            UserError: the loss or the gradient is not finite, or the training diverges; the last checkpoint stays.
            KeyboardInterrupt: after Ctrl-C, SIGTERM or SIGHUP; the step was finished and saved.
            Exception: a callback's own; the step was finished and saved.
        """
        self._model.train()
        start = TrainingStart(
            path=self._run.path,
            recipe=self._recipe,
            step=self.state.step,
            num_steps=self._max_steps,
            num_parameters=self._model.num_parameters,
        )
        with ExitStack() as stack:
            for callback in self._watching:
                callback.begin(start)
                # ExitStack passes the exception's type, itself and its traceback.
                stack.push(lambda kind, error, trace, callback=callback: callback.end(error))
            interruption = stack.enter_context(Interruption())
            while True:
                if self._processes.any(interruption.requested):
                    self._save(best=False)
                    raise KeyboardInterrupt(f"stopped at step {self.state.step}; --resume goes on from there")
                if self._validation_is_due():
                    self._validate()
                if self._is_over():
                    return self.state
                self._step()
                if self._checkpoint_is_due():
                    self._save(best=False)

    def _notify(self, event: StepProgress | Record, callbacks: Sequence[TrainingCallback]) -> None:
        """Passes an event to callbacks. If one fails, a step that is not saved yet is saved first, unless other
        processes would have to take part.
        """
        for callback in callbacks:
            try:
                if isinstance(event, Record):
                    callback.record(event)
                else:
                    callback.step(event)
            except CantWrite:  # nor could a checkpoint be written
                raise
            except BaseException:
                if not self._processes.is_many and self._saved_step != self.state.step:
                    self._save(best=False)
                raise

    def _step(self) -> None:
        state, begun = self.state, self.state.seconds
        whole = self._epoch_batches[state.batch : state.batch + self._config.accumulate_batches]
        num_tokens = sum(self._plan.num_target_tokens(indices) for indices in whole)
        started = self._clock()
        sampling = self._config.scheduled_sampling * self._schedule.progress(state.step, begun)
        shares = [indices[self._processes.rank :: self._processes.size] for indices in whole]
        batches = [collate(self._corpus, share, self._model.start_id) for share in shares if len(share)]
        gradient = self._updater.gradient(batches, num_tokens, sampling=sampling)
        factor = self._schedule.factor(state.step, begun, state.plateau_factor)
        learning_rate = self._recipe.optimizer.learning_rate * factor
        place = f"epoch {state.epoch + 1}, batch {state.batch + 1} of {self.num_batches}"
        self._guard.check(gradient, learning_rate, f"step {state.step + 1} ({place})")
        self._updater.step(learning_rate)
        state.step += 1
        if self._average is not None:
            self._average.update(self._model, state.step)
        state.batch += len(whole)
        epoch, batch = state.epoch + 1, state.batch
        if state.batch == self.num_batches:
            state.epoch, state.batch = state.epoch + 1, 0
            self._epoch_batches = self._plan.epoch(state.epoch)
        self._update_seconds()
        means = self._sums.add(gradient, num_tokens, self._clock() - started)
        if state.step % self._config.log_every_steps == 0:
            self._sums = StepSums()
            norm = {"gradient_norm": gradient.norm} if math.isfinite(gradient.norm) else {}
            record = self._record("train", {**means, "learning_rate": learning_rate, **norm})
            self._notify(record, self._watching)
        self._notify(
            StepProgress(
                step=state.step,
                epoch=epoch,
                batch=batch,
                num_batches=self.num_batches,
                seconds_left=self._seconds_left(),
                **means,
            ),
            self._callbacks,
        )

    def _record(
        self, event: Literal["train", "validation"], values: Mapping[str, float], *, is_best: bool = False
    ) -> Record:
        """Returns a line of the journal after the present step."""
        state = self.state
        epochs = state.epoch + state.batch / self.num_batches
        values = {**values, "seconds": state.seconds}
        return Record(event=event, step=state.step, epochs=epochs, values=values, is_best=is_best)

    def _validate(self) -> None:
        state, metric = self.state, self._recipe.validation.metric
        values = self._validated_values()
        if not math.isfinite(values["loss"]):  # these weights must not be published
            raise UserError(f"step {state.step}: the loss of validation is {values['loss']:g}. {REMEDY}")
        self._update_seconds()
        state.validated_step = state.step
        improved = is_better(metric, values[metric], state.best_value, loss=values["loss"], best_loss=state.best_loss)
        if improved:
            state.best_step, state.best_value, state.best_loss = state.step, values[metric], values["loss"]
        state.num_validations_without_best = 0 if improved else state.num_validations_without_best + 1
        state.plateau_factor *= self._schedule.plateau_fall(state.num_validations_without_best)
        record = self._record("validation", values, is_best=improved)
        # Before it is saved: a process that is killed in between validates again, and the line is replaced.
        if self._journal is not None:
            self._journal.record(record)
        self._save(best=improved)
        self._notify(record, self._callbacks)

    def _validated_values(self) -> dict[str, float]:
        """Returns the values by name. The first process validates, the others wait."""
        names = self._validator.names
        values = dict.fromkeys(names, 0.0)
        if self._processes.is_first:
            published = self._average.model if self._average else self._model
            values = dict(self._validator.validate(published, self._device))
        return dict(zip(names, self._processes.of_first([values[name] for name in names]), strict=True))

    def _update_seconds(self) -> None:
        """Takes the time of the first process's clock, so that all processes make the same decisions."""
        (self.state.seconds,) = self._processes.of_first([self._clock() - self._clock_zero])

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
            return False  # a validation saves a checkpoint itself
        every = self._config.checkpoint_every_steps
        by_steps = every is not None and self.state.step % every == 0
        return by_steps or self.state.seconds - self._saved_seconds >= self._config.checkpoint_every_seconds

    def _save(self, *, best: bool) -> None:
        random_states = self._processes.gather(checkpoint.random_state(self._device))
        if self._processes.is_first:
            checkpoint.save_checkpoint(
                self._run,
                self._learner,
                self.state,
                best=best,
                random_states=random_states,
                num_kept=self._config.keep_checkpoints,
            )
        self._saved_step, self._saved_seconds = self.state.step, self.state.seconds

    def _resume(self) -> checkpoint.TrainingState:
        rank = self._processes.rank
        if self._processes.is_first:
            checkpoint.remove_strays(self._run, num_kept=self._config.keep_checkpoints)
        else:
            # The first process continues from the seed of the weights; dropout differs between processes.
            torch.manual_seed(self._recipe.seed + rank)
        last = checkpoint.checkpoint_path(self._run, checkpoint.LAST)
        if last is None:
            return checkpoint.TrainingState()
        return checkpoint.resume_checkpoint(last, self._learner, device=self._device, rank=rank)

    def _seconds_left(self) -> float | None:
        state, limits = self.state, []
        if self._max_steps is not None:
            # Steps before an interruption may have been as slow as another machine.
            seconds = (state.seconds - self._first_seconds) / (state.step - self._first_step)
            limits.append(seconds * (self._max_steps - state.step))
        if self._config.max_seconds is not None:
            limits.append(self._config.max_seconds - state.seconds)
        return max(0.0, min(limits)) if limits else None


class Guard:
    """Watches losses and gradients. Its memory is in the training's state, so it survives a resumption."""

    def __init__(self, config: TrainerConfig, state: checkpoint.TrainingState) -> None:
        self._config = config
        self._state = state

    def check(self, gradient: Gradient, learning_rate: float, place: str) -> None:
        """Checks an update before the weights move.

        Args:
            place: step, epoch and batch, in words.

        Raises:
            UserError: the loss or the gradient is not finite, or the loss has been far above its lowest for long.
        """
        if not math.isfinite(gradient.loss) or not (math.isfinite(gradient.norm) or gradient.overflowed):
            raise UserError(
                f"{place}: the loss is {gradient.loss:g} and the gradient's norm {gradient.norm:g}, at a learning rate "
                f"of {learning_rate:.3g}. {REMEDY}"
            )
        if self._diverges(gradient.loss):
            state = self._state
            raise UserError(
                f"{place}: the loss, {state.smoothed_loss:.3g}, has been {self._config.divergence_margin:g} nats or "
                f"more above its lowest, {state.lowest_loss:.3g}, for {state.num_high_losses} updates: the training "
                f"diverges, at a learning rate of {learning_rate:.3g}. {REMEDY}; training.divergence_updates = 0 lets "
                "it go on"
            )

    def _diverges(self, loss: float) -> bool:
        state = self._state
        before = loss if state.smoothed_loss is None else state.smoothed_loss
        state.smoothed_loss = smoothed = SMOOTHING * before + (1 - SMOOTHING) * loss
        state.lowest_loss = lowest = smoothed if state.lowest_loss is None else min(state.lowest_loss, smoothed)
        is_high = smoothed >= lowest + self._config.divergence_margin
        state.num_high_losses = state.num_high_losses + 1 if is_high else 0
        return 0 < self._config.divergence_updates <= state.num_high_losses


class Interruption:
    """A context in which Ctrl-C, SIGTERM and SIGHUP set `requested`: the running step is finished and saved first.

    SIGHUP comes from a closed terminal; under `nohup` it stays ignored. A second signal ends the process at once. Only
    the main thread can receive them: elsewhere, nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            heeded = [number for number in SIGNALS if not (is_ignored and number == signal.SIGHUP)]
            self._previous = {number: signal.signal(number, self._receive) for number in heeded}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
