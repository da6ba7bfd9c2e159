"""Stops a training whose loss is no number or diverges, and says where it happened and what to change."""

import math

from attendant.runtime.errors import UserError
from attendant.training.loop.update import Gradient
from attendant.training.recipe.recipe import TrainerConfig
from attendant.training.run.state import TrainingState

SMOOTHING = 0.95
"""Of the loss that is compared with its own past: about the last twenty updates."""


class Guard:
    """Watches losses and gradients. What it remembers stands in the training's state, so it survives a resumption."""

    def __init__(self, config: TrainerConfig, state: TrainingState) -> None:
        self._config = config
        self._state = state

    def check(self, gradient: Gradient, learning_rate: float, place: str) -> None:
        """Looks at an update before the weights move.

        Args:
            place: step, epoch and batch, in words.

        Raises:
            UserError: the loss or the gradient is no number, or the loss has been far above its lowest for long.
        """
        if not math.isfinite(gradient.loss) or not (math.isfinite(gradient.norm) or gradient.overflowed):
            raise UserError(
                f"{place}: the loss is {gradient.loss:g} and the gradient's norm {gradient.norm:g}. "
                + self._remedy(learning_rate)
            )
        if self._diverges(gradient.loss):
            state = self._state
            raise UserError(
                f"{place}: the loss, {state.smoothed_loss:.3g}, has been {self._config.divergence_margin:g} nats or "
                f"more above its lowest, {state.lowest_loss:.3g}, for {state.num_high_losses} updates: the training "
                f"diverges. {self._remedy(learning_rate)}; training.divergence_updates = 0 lets it go on"
            )

    def _diverges(self, loss: float) -> bool:
        state = self._state
        before = loss if state.smoothed_loss is None else state.smoothed_loss
        state.smoothed_loss = smoothed = SMOOTHING * before + (1 - SMOOTHING) * loss
        state.lowest_loss = lowest = smoothed if state.lowest_loss is None else min(state.lowest_loss, smoothed)
        is_high = smoothed >= lowest + self._config.divergence_margin
        state.num_high_losses = state.num_high_losses + 1 if is_high else 0
        return 0 < self._config.divergence_updates <= state.num_high_losses

    def _remedy(self, learning_rate: float) -> str:
        return (
            f"Lower optimizer.learning_rate (this step's: {learning_rate:.3g}), lengthen schedule.warmup_steps or "
            "lower training.clip_norm; --resume goes on from the last checkpoint"
        )
