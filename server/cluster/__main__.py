"""python -m attendant.server.cluster serve: see --help."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from attendant.runtime.command import Command, CommandParser, exit_command
from attendant.runtime.errors import UserError
from attendant.server.config import OPTIONS, add_options, config_of

DEFAULT = "(default: %(default)s)"

OF_REPLICAS = {
    "port",
    "precision",
    "provider",
    "threads",
    "workers",
    "hang_seconds",
    "max_restarts",
    "max_rows",
    "max_source_positions",
    "max_waiting",
    "max_wait_seconds",
    "max_client_requests",
    "max_client_rows",
    "light_rows",
    "bulk_seconds",
    "unread_seconds",
    "require_signature",
    "load_seconds",
    "load_mib",
    "drain_seconds",
    "tokens",
}
"""The server's options that a replica has, too. Ray does the work of the others, or they do not apply."""


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not 0 <= float(text) < math.inf:
        raise ValueError
    return float(text)


# argparse names the type in its error.
_count.__name__, _seconds.__name__ = "whole number from 1", "number of seconds, 0 or more,"


def serve_parser() -> CommandParser:
    """Returns the parser of `serve`: the server's options for a replica, and the numbers of replicas."""
    parser = CommandParser(
        description="Serves bundles on the Ray cluster that this machine belongs to, and returns when the replicas are "
        "ready. A second call with other bundles or options replaces the replicas without a failed request. "
        "`serve shutdown` of Ray ends it."
    )
    parser.add_argument(
        "bundles",
        metavar="BUNDLE",
        type=Path,
        nargs="+",
        help="folders made by `attendant export`, at the same path on all nodes",
    )
    replicas = parser.add_argument_group("replicas")
    counts: dict[str, Any] = {"type": _count, "metavar": "NUMBER"}
    replicas.add_argument("--min-replicas", default=1, help=f"smallest number {DEFAULT}", **counts)
    replicas.add_argument("--max-replicas", default=1, help=f"largest number {DEFAULT}", **counts)
    replicas.add_argument(
        "--ongoing-requests",
        default=32,
        help=f"target number of requests per replica, including waiting ones, which determines the replicas {DEFAULT}",
        **counts,
    )
    delays: dict[str, Any] = {"type": _seconds, "metavar": "SECONDS"}
    replicas.add_argument(
        "--upscale-seconds", default=30.0, help=f"delay before replicas are added {DEFAULT}", **delays
    )
    replicas.add_argument(
        "--downscale-seconds", default=600.0, help=f"delay before replicas are ended {DEFAULT}", **delays
    )
    replicas.add_argument("--models-held", help="models that a replica holds at once (default: all)", **counts)
    add_options(
        parser.add_argument_group("options of the server, for each replica"),
        [option for option in OPTIONS if option.name in OF_REPLICAS],
    )
    return parser


def _serve(parsed: argparse.Namespace) -> None:
    from attendant.server.cluster.serving import Scale, deploy  # noqa: PLC0415  # it needs Ray, and --help does not

    if parsed.min_replicas > parsed.max_replicas:
        raise UserError(
            f"--min-replicas is {parsed.min_replicas}, must be at most --max-replicas, {parsed.max_replicas}"
        )
    deploy(config_of(parsed, os.environ), Scale(**{f.name: getattr(parsed, f.name) for f in fields(Scale)}))


def main(arguments: Sequence[str]) -> None:
    """Runs the command. Raises UserError: another command, no Ray, no cluster, or the command's error."""
    if arguments[:1] != ["serve"]:
        raise UserError("the command must be serve; see serve --help")
    Command(serve_parser(), lambda parsed: in_cluster(lambda: _serve(parsed)))(arguments[1:])


def in_cluster(run: Any) -> None:
    """Runs within the cluster that this machine belongs to. Raises UserError: there is no Ray, or no cluster."""
    try:
        import ray  # noqa: PLC0415
    except ModuleNotFoundError:
        raise UserError("Ray is not installed: pip install 'attendant-seq2seq[cpu,cluster]'") from None
    try:
        ray.init(address="auto", log_to_driver=False)
    except ConnectionError:
        raise UserError("this machine belongs to no Ray cluster; `ray start --head` begins one") from None
    try:
        run()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    exit_command("cluster", lambda: main(sys.argv[1:]))
