"""How errors end the command."""

from argparse import Namespace

import grpc

from attendant_client.command.rendering import explain
from attendant_client.errors import AttendantError


def test_no_word_of_a_servers_ends_the_line_or_turns_it() -> None:
    error = AttendantError(grpc.StatusCode.INTERNAL, "a\nattendant: forged\x1b[2J\x00\u200b\u202e é")
    assert explain(error, Namespace(target="here")) == "a attendant: forged\\u001b[2J\\u0000\\u200b\\u202e é"
