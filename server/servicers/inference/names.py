"""The service's name, and which of its methods are not like others."""

from typing import Final

from attendant.server.servicers.inference.v2 import open_inference_pb2 as messages

SERVICE_NAME: Final = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
PROBES: Final = frozenset({"ServerLive", "ServerReady"})
"""Asked by probes, which may have no token: as open as health checks are."""
