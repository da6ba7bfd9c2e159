"""The service's name, and which of its methods are not like others."""

from typing import Final

from attendant.server.servicers.inference.v2 import open_inference_pb2 as messages

SERVICE: Final = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE_NAME: Final = SERVICE.full_name
METHODS: Final = tuple(SERVICE.methods_by_name)
PROBES: Final = frozenset({"ServerLive", "ServerReady"})
"""Asked by probes, which may have no token: as open as health checks are."""

FOR_ADMINISTRATORS: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
