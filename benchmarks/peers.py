"""Measures Attendant and its peers, in process and served. Each peer has its environment, its model and its program.

The programs are functions of programs.py and plain_model.py.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from attendant.runtime.files import new_folder
from attendant.server.bench.load import LIST_SIZE
from attendant.server.inference.v2 import open_inference_pb2 as inference
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.decoding import NUM_WORKERS, Decoder, decoded, layout, many_sentences, one_by_one, own_decoders
from benchmarks.harness import ENVIRONMENTS, TORCH, measure, output_of, part_of
from benchmarks.job import Job, program, words_of
from benchmarks.programs import G2P_BUNDLE, g2p_words
from benchmarks.results import Part
from benchmarks.servers import MANY_CLIENTS, Server, attendant_server, closed, requests_of, under
from benchmarks.serving import open_loops
from benchmarks.workload import NUM_REQUESTS, Context, Work, equal_work, real_work

TRANSFORMERS = {
    "6+2": {"num_encoder_layers": 6, "num_decoder_layers": 2, "width": 256, "feed_forward": 2048},
    "12+1": {"num_encoder_layers": 12, "num_decoder_layers": 1, "width": 256, "feed_forward": 1152},
}
"""Transformers (Vaswani et al. 2017) with about as many parameters as the model of the workload: 17.2 and 17.5 M."""

SERVED_BATCH_SIZES = (16, 32, 64)
"""Candidates for each peer: with 64 clients, one batch of all of them, or several that take turns."""

SERVED_TRANSFORMER = "12+1"


def greedy(context: Context) -> Part:
    """Greedy, in process.

    Sentences per second, each system with the best of its measured settings.
    """
    return decoded(context, all_decoders(context), many_sentences(context.workload, "greedy"))


def beam(context: Context) -> Part:
    """Beam 4, in process.

    As before, with a beam. The best hypothesis is returned.
    """
    return decoded(context, all_decoders(context), many_sentences(context.workload, "beam 4"))


def single(context: Context) -> Part:
    """One sentence alone, in process, one thread.

    Median latency of 20 source positions and as many steps, greedy.
    """
    return decoded(context, all_decoders(context, num_workers=1), one_by_one(context.workload))


def all_decoders(context: Context, num_workers: int = NUM_WORKERS) -> Iterator[Decoder]:
    """Yields Attendant in its layouts, and all peers."""
    yield from own_decoders(context, *dict.fromkeys([(num_workers, 1), (1, num_workers)]))
    workload, packages = context.workload, {name: env.package for name, env in ENVIRONMENTS.items()}

    def graphs(precision: str) -> list[str]:
        return program("programs:work_plain", folder=plain_folder(context, precision))

    def joeynmt() -> list[str]:
        python = ENVIRONMENTS["joeynmt"].install(context.cache)
        return program("programs:work_joeynmt", python, **asdict(workload) | {"dropout": 0.0})

    for name, command, about in (
        ("plain ORT loop fp32", partial(graphs, "fp32"), "graphs as torch.onnx writes them"),
        ("plain ORT loop int8", partial(graphs, "int8"), "the same after quantize_dynamic"),
        ("PyTorch loop fp32", partial(program, "plain_model:work", **asdict(workload)), f"the same in {TORCH}, eager"),
        ("JoeyNMT fp32", joeynmt, f"{packages['joeynmt']}, the same kind of model"),
    ):
        yield Decoder(name=f"{name}, {layout(num_workers)}", command=command, num_workers=num_workers, about=about)

    yield from transformers(context, num_workers)
    # Marian's `s2s` (Junczys-Dowmunt et al. 2018): each direction of the encoder is as wide as the decoder, and a
    # second cell follows the attention. With three quarters of the width it has 16.0 M parameters. Its integer products
    # need widths of at least 64.
    width = max(64, 3 * workload.hidden_size // 4)
    sizes = {"embedding": max(64, workload.embedding_size), "width": width}
    yield Decoder(
        name=f"Marian s2s LSTM int8, numWorkers={num_workers}",
        command=partial(peer_program, context, "marian", "work", sizes, num_workers=num_workers),
        about=f"{packages['marian']}, the same kind of model, hidden size {width}",
    )


def transformers(context: Context, num_workers: int) -> Iterator[Decoder]:
    """Yields CTranslate2 with each of TRANSFORMERS. Its workers are threads of one process."""
    for layers, sizes in TRANSFORMERS.items():
        yield Decoder(
            name=f"CTranslate2 {layers} int8, inter_threads={num_workers}",
            command=partial(peer_program, context, "ctranslate2", "work", sizes, num_workers=num_workers),
            about=f"{ENVIRONMENTS['ctranslate2'].package}, Transformer of width {sizes['width']}",
        )


def plain_folder(context: Context, precision: str) -> str:
    """Returns the folder of the plain graphs in a precision."""
    return f"{model_folder(context, 'plain_model:export_plain', asdict(context.workload))}/{precision}"


def peer_program(context: Context, peer: str, function: str, sizes: Mapping[str, int], **arguments: int) -> list[str]:
    """Returns the command of FUNCTION_PEER of programs.py in the peer's environment, with a model of these sizes.

    Raises:
        Unavailable: the environment or the model can't be made.
    """
    python = str(ENVIRONMENTS[peer].install(context.cache))
    sizes = {**sizes, "vocabulary_size": context.workload.vocabulary_size}
    folder = model_folder(context, f"programs:make_{peer}", sizes, python)
    return program(f"programs:{function}_{peer}", python, folder=folder, **arguments)


def model_folder(context: Context, maker: str, sizes: Mapping[str, float], python: str = sys.executable) -> str:
    """Returns the folder of a model; a function of this package makes it at the first use. Raises Unavailable."""
    folder = context.cache / "models" / "-".join([maker.rpartition(":")[2], *map(str, sizes.values())])
    if not folder.exists():
        with new_folder(folder) as new:
            output_of(program(maker, python, folder=str(new), **sizes))
    return str(folder)


def served(context: Context) -> Part:
    """Served, compared with peers, closed loop.

    Each client sends its next request after each answer; the load generator shares the machine. Medians of the rounds.
    Server CPU is the sum over all the server's processes.
    """
    return _closed(context, equal_work(context.workload), (1, MANY_CLIENTS))


def real_lengths(context: Context) -> Part:
    """Served, compared with peers, lengths of real sentences.

    64 clients in a closed loop, as before; 5 to 80 source positions, and each sentence ends after its own number of
    steps. With Triton, the client pads the source, and the loop removes the padding that all sources of a batch share,
    and steps until the last one has ended. In CTranslate2 each row ends, and leaves the batch, at its own step.
    """
    return _closed(context, real_work(context.workload), (MANY_CLIENTS,))


def arrivals(context: Context) -> Part:
    """Served, compared with peers, Poisson arrivals, lengths of real sentences.

    Latency counts from the scheduled time of each arrival. Capacity: requests per second of 192 clients in a closed
    loop.
    """
    work = real_work(context.workload)
    own = attendant_server(context, requests=requests_of(work))
    return open_loops(context, [own, _triton(context, work, 16), _ctranslate2(context, work, 32)])


def _closed(context: Context, work: Work, clients: Sequence[int]) -> Part:
    peers = [peer(context, work, size) for size in SERVED_BATCH_SIZES for peer in (_triton, _ctranslate2)]
    servers = [attendant_server(context, requests=requests_of(work)), *peers]
    loads = {f"{num} clients": closed(context, num) for num in clients}
    return part_of(measure([under(server, loads) for server in servers], context.num_rounds))


def _triton(context: Context, work: Work, batch_size: int) -> Server:
    """Returns a server whose requests have padded sources, because Triton batches only equal shapes."""

    def command() -> list[str]:
        python, folder = ENVIRONMENTS["triton"].install(context.cache), plain_folder(context, "int8")
        sizes = {"num_instances": NUM_WORKERS, "batch_size": batch_size}
        return program("programs:serve_triton", python, folder=folder, **sizes)

    longest, requests = max(len(source) for source, _ in work), []
    for source, num_steps in work:
        values = {"source_ids": source + [0] * (longest - len(source)), "num_steps": [num_steps]}
        request = inference.ModelInferRequest(
            model_name="mt",
            inputs=[{"name": name, "datatype": "INT64", "shape": [1, len(ids)]} for name, ids in values.items()],
            raw_input_contents=[np.array(ids, "<i8").tobytes() for ids in values.values()],
        )
        requests.append(request.SerializeToString())
    return Server(
        name=f"NVIDIA Triton, batches up to {batch_size}",
        command=command,
        requests=requests,
        method="/inference.GRPCInferenceService/ModelInfer",
        about=f"{ENVIRONMENTS['triton'].package}, {NUM_WORKERS} instances of the plain int8 loop",
    )


def _ctranslate2(context: Context, work: Work, batch_size: int) -> Server:
    model, options = TRANSFORMERS[SERVED_TRANSFORMER], {"num_workers": NUM_WORKERS, "batch_size": batch_size}
    return Server(
        name=f"CTranslate2 {SERVED_TRANSFORMER} with grpc.aio, batches up to {batch_size}",
        command=partial(peer_program, context, "ctranslate2", "serve", model, **options),
        requests=[f"{num_steps} {words_of(source)} </s>".encode() for source, num_steps in work],
        method="/benchmarks.CTranslate2/Translate",
        about=f"{ENVIRONMENTS['ctranslate2'].package}, inter_threads={NUM_WORKERS}, int8",
    )


def pronunciation(context: Context) -> Part:
    """The pronunciation model, in process and served.

    English words, greedy. g2p_en is a GRU without attention, in numpy, one word at a time. A list: one client that
    sends 256 words in one call, and the next call after each answer. Each system uses its fastest batch size.
    """

    def g2p_en() -> list[str]:
        return program("programs:work_g2p_en", ENVIRONMENTS["g2p-en"].install(context.cache))

    decoding = messages.DecodingOptions(beam_size=1)
    texts = [messages.GenerateRequest(text=word, decoding=decoding) for word in g2p_words(Job(NUM_REQUESTS))]
    requests = [text.SerializeToString() for text in texts]
    job = {"in process": Job(num_sentences=LIST_SIZE, batch_size=0)}
    loads = {f"{MANY_CLIENTS} clients": closed(context), f"lists of {LIST_SIZE}": closed(context, 1, "list")}
    systems, servers = [], []
    for num in (1, NUM_WORKERS):
        for name, command, sizes in (
            ("Attendant int8", partial(program, "own_worker:pronounce"), (64, 256)),
            (ENVIRONMENTS["g2p-en"].package, g2p_en, (1,)),
        ):
            named = f"{name}, {layout(num)}"
            decoder = Decoder(name=named, command=command, num_workers=num, batch_sizes=sizes)
            systems.append(decoder.system(job, context.visit_seconds))
        options = f"--precision int8 --workers {num} --threads {NUM_WORKERS}"
        server = attendant_server(context, options, name="Attendant served", bundle=G2P_BUNDLE, requests=requests)
        servers.append(under(server, loads))
    return part_of(measure([*systems, *servers], context.num_rounds))
