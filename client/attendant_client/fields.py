"""Messages as plain values, for whoever takes requests."""

from typing import Any

from google.protobuf.message import Message

from attendant_client.v1 import seq2seq_pb2 as pb


def set_fields(message: Message) -> dict[str, Any]:
    """The fields of a message that are set, by their names: tokens as a sequence, a message as a dict in turn."""
    return {field.name: _plain(value) for field, value in message.ListFields()}


def _plain(value: Any) -> Any:
    if isinstance(value, pb.Tokens):
        return value.tokens
    return set_fields(value) if isinstance(value, Message) else value
