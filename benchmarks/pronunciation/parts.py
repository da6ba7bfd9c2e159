"""Words per second in process and served, beside what people use today."""

from collections.abc import Iterator
from functools import partial

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.process import available_cpus
from attendant.server.bench.load import LIST_SIZE, Load
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks import ROOT
from benchmarks.command import Context
from benchmarks.decoding.bookkeeping import engine_system
from benchmarks.decoding.in_process import NUM_WORKERS, Decoder, layout
from benchmarks.harness.environment import ENVIRONMENTS, TORCH
from benchmarks.harness.measurement import Columns, Unavailable, measure, part_of, remarks, spread_of
from benchmarks.harness.results import Part
from benchmarks.job import Job
from benchmarks.program import program
from benchmarks.pronunciation.words import BUNDLE, RUN, words
from benchmarks.serving.payloads import NUM_REQUESTS, Work
from benchmarks.serving.servers import Server, attendant_server, empty_service, under

NUM_CLIENTS = 64
ASKED = {"": f"{NUM_CLIENTS} clients", "_lists": f"lists of {LIST_SIZE}"}


def pronunciation(context: Context) -> Part:
    """The pronunciation model, in process and served.

    English words, greedy. PyTorch: the same model as it was trained (runs/g2p-cmudict), by the same search. g2p_en: a
    GRU without attention, in numpy, a word at a time. A list: one client that asks for 256 words in one call, and again
    when it was answered. Each at the fastest of its batch sizes.
    """
    job = Job(num_sentences=8 if context.quick else LIST_SIZE, batch_size=0)
    systems = [one.system({"": job}, context.visit_seconds) for one in _decoders(context)]
    loads = {
        "": Load(kind="closed", num_clients=NUM_CLIENTS, seconds=context.visit_seconds),
        "_lists": Load(kind="list", seconds=context.visit_seconds),
    }
    servers = [_server(context, num_workers) for num_workers in (1, NUM_WORKERS)]
    systems += [under(server, loads) for server in servers]
    columns: Columns = {
        "asked": lambda one: ASKED.get(one.point, "") if "p50" in one.samples else "",
        "words/s": "speed",
        "slowest-fastest": spread_of("speed"),
        "CPU ms/word": "cpu_ms",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "remarks": remarks,
    }
    found = measure(systems, context.num_rounds)
    part = part_of(found, columns, points=loads, best_by="speed")
    fastest = max(found[-len(servers) :], key=lambda one: one.median("speed"))
    bounds = [
        under(empty_service(servers[0].requests), {"": loads[""]}),
        engine_system(
            context, "int8", "greedy", num_rows=round(fastest.median("step_rows")), work=word_work, path=BUNDLE
        ),
    ]
    empty, graphs = measure(bounds, context.num_rounds)
    cpu = graphs.median("graphs_ms") + empty.median("cpu_ms") + fastest.median("generator_ms")
    part.figures["served_bound_speed"] = 1e3 * available_cpus() / cpu
    return part


def word_work(context: Context) -> Work:
    """The words that servers are asked, as ids; each ends where the model ends it."""
    bundle = open_bundle(BUNDLE)
    limit = bundle.manifest.limits.max_target_tokens
    encode = bundle.source_tokenizer.encode
    return [(bundle.source_ids(encode(word)), limit) for word in words(Job(NUM_REQUESTS))]


def _decoders(context: Context) -> Iterator[Decoder]:
    def g2p_en() -> list[str]:
        python = ENVIRONMENTS["g2p-en"].install(context.cache)
        return program("peers.g2p_en:work", python, folder=str(context.cache / "models" / "g2p_en"))

    def torch() -> list[str]:
        if not RUN.exists():
            raise Unavailable(f"no {RUN.relative_to(ROOT)} here; recipes/g2p-cmudict.toml trains it")
        return program("pronunciation.workers:torch")

    ours = partial(program, "pronunciation.workers:attendant")
    for num_workers in (1, NUM_WORKERS):
        for key, name, command, sizes in (
            ("attendant", "Attendant int8", ours, (64, 256)),
            ("torch", f"PyTorch fp32, {TORCH}", torch, (64, 256)),
            ("g2p_en", ENVIRONMENTS["g2p-en"].package, g2p_en, (1,)),
        ):
            named = f"{name}, {layout(num_workers)}"
            yield Decoder(key=key, name=named, command=command, num_workers=num_workers, batch_sizes=sizes)


def _server(context: Context, num_workers: int) -> Server:
    greedy = messages.DecodingOptions(beam_size=1)
    asked = [messages.GenerateRequest(text=word, decoding=greedy) for word in words(Job(NUM_REQUESTS))]
    requests, name = [one.SerializeToString() for one in asked], "Attendant served"
    return attendant_server(context, key="served", name=name, bundle=BUNDLE, requests=requests, num_workers=num_workers)
