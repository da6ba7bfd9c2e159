"""A bundle that is being served: its stepper, its engine, and the limits in force."""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.bundle import Bundle, BundleRefused, open_bundle
from runtime.golden import check_golden
from runtime.manifest import Limits, Precision
from runtime.onnx_session import Provider
from runtime.onnx_stepper import OnnxStepper
from server.config import ServerConfig
from server.engine.engine import Engine
from server.engine.request import StepStats
from server.engine.runner import EngineRunner
from server.engine.scheduler import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model.

    Attributes:
        limits: the manifest's, narrowed by what this server was given.
    """

    bundle: Bundle
    precision: Precision
    provider: Provider
    limits: Limits
    runner: EngineRunner

    @property
    def name(self) -> str:
        return self.bundle.manifest.name

    @property
    def version(self) -> str:
        return self.bundle.manifest.version


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A bundle that has passed every check on this host, and is not served yet."""

    bundle: Bundle
    stepper: OnnxStepper
    config: ServerConfig

    @property
    def name(self) -> str:
        return self.bundle.manifest.name

    def serve(self, on_step: Callable[[StepStats], None], on_death: Callable[[], None]) -> ServedModel:
        """Starts its engine; from the event loop that will await it."""
        config, limits = self.config, self.bundle.manifest.limits
        budget = Budget(max_rows=config.max_rows, max_source_positions=config.max_source_positions)
        runner = EngineRunner(
            self.name,
            Engine(self.stepper, budget),
            max_waiting=config.max_waiting,
            on_step=on_step,
            on_death=on_death,
        )
        runner.start()
        beam_size = min(limits.max_beam_size, config.max_rows)
        return ServedModel(
            bundle=self.bundle,
            precision=self.stepper.precision,
            provider=self.stepper.provider,
            limits=limits.model_copy(
                update={
                    "max_beam_size": beam_size,
                    "max_num_hypotheses": min(limits.max_num_hypotheses, beam_size),
                }
            ),
            runner=runner,
        )


def load_model(path: str, config: ServerConfig) -> LoadedModel:
    """Opens a bundle, loads its graphs and decodes its golden examples on this host and provider.

    The golden examples are the warm-up too: greedy and beam have run before the first request.

    Raises:
        UserError: whatever differs, one line each (BundleRefused), or a provider that isn't there.
    """
    bundle = open_bundle(path)
    precision = config.precision or bundle.manifest.default_precision.get(config.provider, "fp32")
    stepper = OnnxStepper(bundle, precision, config.provider, config.threads)
    if differences := check_golden(bundle, stepper, precision, config.provider):
        raise BundleRefused(bundle.path, differences)
    return LoadedModel(bundle, stepper, config)
