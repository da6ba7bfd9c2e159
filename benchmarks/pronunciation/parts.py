"""Words per second in process and served, beside what people use today."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from attendant.server.bench.load import Load
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.command import Context
from benchmarks.decoding.in_process import NUM_WORKERS, Decoder, layout
from benchmarks.harness.environment import ENVIRONMENTS, TORCH
from benchmarks.harness.measurement import Columns, System, Visits, measure, part_of, remarks, spread_of
from benchmarks.harness.results import Part
from benchmarks.job import Job
from benchmarks.program import program
from benchmarks.pronunciation.words import BUNDLE, words
from benchmarks.serving.payloads import NUM_PAYLOADS, write_payloads
from benchmarks.serving.servers import Server, attendant_server, running

NUM_CLIENTS = 64
LIST_SIZE = 256
GENERATE_MANY = "/attendant.v1.Seq2Seq/GenerateMany"


def pronunciation(context: Context) -> Part:
    """The pronunciation model, in process and served.

    English words, greedy. PyTorch: the same model as it was trained, by the same search. g2p_en: a GRU without
    attention, in numpy, a word at a time. A list: one client that asks for 256 words in one call, and again when it was
    answered. Each at the fastest of its batch sizes.
    """
    job = Job(num_sentences=8 if context.quick else LIST_SIZE, batch_size=LIST_SIZE)
    systems = [one.system({"": job}, context.visit_seconds, fixed=False) for one in _decoders(context)]
    for num_workers in (1, NUM_WORKERS):
        single = _server(context, num_workers)
        lists = replace(single, payloads=partial(_list_payloads, context), method=GENERATE_MANY)
        systems.append(_served("served", f"{NUM_CLIENTS} clients", single, _load(context, NUM_CLIENTS)))
        systems.append(_served("lists", f"lists of {LIST_SIZE}", lists, _load(context, 1), LIST_SIZE))
    columns: Columns = {
        "words/s": "speed",
        "slowest-fastest": spread_of("speed"),
        "CPU ms/word": "cpu_ms",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "remarks": remarks,
    }
    return part_of(measure(systems, num_rounds=context.num_rounds, say=context.say), columns, best_by="speed")


def _decoders(context: Context) -> Iterator[Decoder]:
    def g2p_en() -> list[str]:
        python = ENVIRONMENTS["g2p-en"].install(context.cache)
        return program("peers.g2p_en:work", python, folder=str(context.cache / "models" / "g2p_en"))

    for num_workers in (1, NUM_WORKERS):
        decoder = partial(Decoder, num_workers=num_workers)
        commands: dict[str, tuple[str, Callable[[], list[str]]]] = {
            "attendant": ("Attendant int8", partial(program, "pronunciation.workers:attendant")),
            "torch": (f"PyTorch fp32, {TORCH}", partial(program, "pronunciation.workers:torch")),
        }
        for key, (name, command) in commands.items():
            yield decoder(key=key, name=f"{name}, {layout(num_workers)}", command=command, batch_sizes=(64, 256))
        yield decoder(
            key="g2p_en",
            name=f"{ENVIRONMENTS['g2p-en'].package}, {layout(num_workers)}",
            command=g2p_en,
            batch_sizes=(1,),
        )


def _server(context: Context, num_workers: int) -> Server:
    return attendant_server(
        context,
        bundle=BUNDLE,
        payloads=write_payloads(context, "words", (one.SerializeToString() for one in _requests())),
        num_workers=num_workers,
    )


def _requests() -> list[messages.GenerateRequest]:
    greedy = messages.DecodingOptions(beam_size=1)
    return [messages.GenerateRequest(text=word, decoding=greedy) for word in words(Job(NUM_PAYLOADS))]


def _list_payloads(context: Context) -> Path:
    requests = _requests()
    parts = (requests[start : start + LIST_SIZE] for start in range(0, len(requests), LIST_SIZE))
    lists = (messages.GenerateManyRequest(requests=part).SerializeToString() for part in parts)
    return write_payloads(context, "lists-of-words", lists)


def _load(context: Context, num_clients: int) -> Load:
    return Load(kind="closed", num_clients=num_clients, seconds=context.visit_seconds)


def _served(key: str, asked: str, server: Server, load: Load, num_words: int = 1) -> System:
    """A server under a load whose requests have so many words each."""

    def start() -> Iterator[Visits]:
        with running(server) as run:
            run.load(load)

            def visit(number: int) -> dict[str, float]:
                found = run.load(replace(load, seed=number))
                speed, cpu = found["speed"] * num_words, found["cpu"] / num_words
                return {"speed": speed, "cpu_ms": cpu, "p50": found["p50"], "p99": found["p99"]}

            yield {"": visit}

    return System(key=key, name=f"Attendant served, {asked}", start=start, about=server.about)
