"""`attendant bench BUNDLE`: see --help."""

import argparse
from pathlib import Path

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.command import Command, require
from attendant.runtime.errors import UserError
from attendant.runtime.process import available_cpus, limited, processor
from attendant.server.bench.measuring import measured
from attendant.server.bench.report import advice, write
from attendant.server.bench.sources import sources_of

SECONDS = 100.0
OUTPUT = Path("attendant-bench")

DESCRIPTION = """\
Measures how fast a bundle is served on this host: requests per second and latency with one worker, two, and so on, in
closed loops of several numbers of clients; then, with the best of them, latency at random arrivals. The load generator
takes its share of the host. The server's other options come from the environment, as where it is deployed:

  ATTENDANT_PRECISION=fp32 attendant bench BUNDLE
"""


def command(name: str) -> Command:
    """The one command that there is."""
    parser = argparse.ArgumentParser(
        prog="attendant bench",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("bundle", metavar="BUNDLE", type=Path)
    option(
        "--data",
        metavar="FILE",
        type=Path,
        help="texts to send, one a line; of lines with tabs the first column (default: what the bundle tells of its "
        "sources)",
    )
    option("--beam-size", metavar="N", type=int, help="of the requests (default: the bundle's)")
    option(
        "--seconds", metavar="SECONDS", type=float, default=SECONDS, help="of load, all in all (default: %(default)g)"
    )
    option(
        "--output",
        metavar="FOLDER",
        type=Path,
        default=OUTPUT,
        help="for bench.json and bench.svg, which are replaced (default: %(default)s)",
    )
    return Command(parser, _run)


def _run(options: argparse.Namespace) -> None:
    require("onnxruntime")
    bundle = limited(lambda: open_bundle(options.bundle), f"the bundle {options.bundle} is refused")
    most = bundle.manifest.limits.max_beam_size
    if options.beam_size is not None and not 1 <= options.beam_size <= most:
        raise UserError(f"--beam-size is {options.beam_size}, must be 1 to {most} with this bundle")
    sources, num_cpus = sources_of(bundle, options.data, options.beam_size), available_cpus()
    model = f"{bundle.manifest.name} {bundle.manifest.version}"
    host = processor()
    print(f"{model}, {num_cpus} CPUs; sent: {sources.about}", flush=True)
    print(f"processor: {host}", flush=True)
    found = measured(options.bundle, sources.payloads, num_cpus, options.seconds, lambda line: print(line, flush=True))
    print(advice(options.bundle, found))
    write(options.output, found, {"model": model, "processor": host, "sent": sources.about})
    print(f"written: bench.json and bench.svg in {options.output}")
