"""Puts replicas into a Ray cluster, behind Ray's gRPC proxies."""

from dataclasses import dataclass, replace
from pathlib import Path

from ray import serve

from attendant.cluster.replica import Replica
from attendant.runtime.bundle.bundle import read_manifest
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig

NAME = "attendant"
SERVICERS = ["attendant.cluster.proxy.add_seq2seq"]
NO_LINE_PER_CALL = {"enable_access_log": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The number of replicas, and the load of each.

    Attributes:
        ongoing_requests: Ray's target per replica, including waiting requests.
        upscale_seconds, downscale_seconds: delays before replicas are added or removed.
        models_held: models that a replica holds at once; if None, all.
    """

    min_replicas: int
    max_replicas: int
    ongoing_requests: int
    upscale_seconds: float
    downscale_seconds: float
    models_held: int | None


def deploy(config: ServerConfig, scale: Scale) -> None:
    """Serves in the cluster that this process has joined, and returns once the replicas are ready.

    If it serves already, new replicas are loaded alongside the old ones, which end when their requests have been
    answered.

    Raises:
        UserError: a bundle without a manifest; two of one name.
        RuntimeError: Ray's, if the replicas don't start.
    """
    serve.start(
        proxy_location="EveryNode",
        grpc_options={"port": config.port, "grpc_servicer_functions": SERVICERS},
        logging_config=NO_LINE_PER_CALL,
    )
    serve.run(application(config, scale), name=NAME, route_prefix=f"/{NAME}")


def application(config: ServerConfig, scale: Scale) -> serve.Application:
    """See `deploy`."""
    bundles: dict[str, tuple[Path, str]] = {}
    for path in config.bundles:
        manifest = read_manifest(path)
        if manifest.name in bundles:
            raise UserError(f"two bundles hold a model named {manifest.name}: {bundles[manifest.name][0]} and {path}")
        bundles[manifest.name] = path.resolve(), manifest.version
    # Each replica has another working directory.
    config = replace(
        config,
        threads=config.threads or 1,
        tokens=config.tokens and config.tokens.resolve(),
        require_signature=tuple(path.resolve() for path in config.require_signature),
    )
    deployment = serve.deployment(
        Replica,
        name=NAME,
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": scale.ongoing_requests,
            "upscale_delay_s": scale.upscale_seconds,
            "downscale_delay_s": scale.downscale_seconds,
        },
        max_ongoing_requests=config.max_rows,
        max_queued_requests=config.max_waiting,
        max_surge_percent=25,
        graceful_shutdown_timeout_s=config.drain_seconds,
        logging_config=NO_LINE_PER_CALL,
        ray_actor_options={"num_cpus": config.threads, "num_gpus": int(config.provider == "cuda")},
    )
    return deployment.bind(bundles, config, scale.models_held or len(bundles))
