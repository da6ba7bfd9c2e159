"""The gRPC server and its port."""

import socket

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from attendant.runtime.errors import UserError
from attendant.server.access.access import Access
from attendant.server.engine.answer_room import AnswerRoom
from attendant.server.models import Catalogue
from attendant.server.observability.metrics import Metrics
from attendant.server.observability.rpc_metrics import GrpcMetrics
from attendant.server.servicers.gatekeeper import Gatekeeper
from attendant.server.servicers.seq2seq import SERVICE_NAME, Seq2SeqServicer
from attendant_client.v1 import seq2seq_pb2_grpc

MAX_REQUEST_BYTES = 256 * 1024
"""A request is a sentence: more is refused by gRPC before it is parsed. Answers may be larger: attention is."""

OPTIONS = (
    # Without it a second server would bind the same port, and take half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
)


def grpc_server(
    catalogue: Catalogue,
    metrics: Metrics,
    health_servicer: health_pb2_grpc.HealthServicer,
    answer_room: AnswerRoom,
    access: Access,
) -> grpc.aio.Server:
    """A server of all our services, which does not listen yet."""
    # The gatekeeper is inside, so that what it refuses is counted too.
    interceptors = [GrpcMetrics(metrics.registry), Gatekeeper(access, catalogue, metrics)]
    server = grpc.aio.server(options=OPTIONS, interceptors=interceptors)
    seq2seq_pb2_grpc.add_Seq2SeqServicer_to_server(  # type: ignore[no-untyped-call]  # generated code
        Seq2SeqServicer(catalogue, metrics, answer_room), server
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if access.reflection != "off":
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
    """Binds a server's port; 0 takes a free one. Returns the one it got.

    Args:
        credentials: TLS; None: unencrypted.

    Raises:
        UserError: the port is in use, or the host is none of this machine's.
    """
    # gRPC writes its reasons to standard error, past every log level, and raises without one: so ask first.
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        if credentials is not None:
            return int(server.add_secure_port(authority(host, port), credentials))
        return int(server.add_insecure_port(authority(host, port)))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--port: can't listen on {authority(host, port)}: {reason}; choose another --port or --host, or --port 0 "
            "for a free one"
        ) from None


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
