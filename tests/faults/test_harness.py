"""The instruments of the fault tests."""

import signal
from pathlib import Path

import h2.events
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.attacker import GENERATE, RawConnection, framed
from tests.faults.conftest import Start, judged
from tests.faults.figures import Figures, at_least, at_most
from tests.faults.witness import witness


def test_a_call_frame_by_frame_beside_a_witness(start: Start) -> None:
    with start() as running:
        with witness(running.target) as seen, RawConnection(running.target) as connection:
            stream = connection.open_stream(GENERATE)
            message = framed(messages.GenerateRequest(text="badge"))
            assert connection.send(stream, message, end=True) == len(message)
            while not any(isinstance(event, h2.events.StreamEnded) for event in connection.events):
                connection.receive(0.05)
            trailers = [event for event in connection.events if isinstance(event, h2.events.TrailersReceived)]
            assert (b"grpc-status", b"0") in [tuple(header) for header in trailers[0].headers]
            assert running.num_connections() >= 1
        assert set(seen.codes) == {"OK"} and seen.quantile(0.5) > 0
        assert running.resident_mebibytes() > 1 and running.num_descriptors() > 3 and running.num_threads() > 1
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert "message=ended" in running.log()


def test_figures_of_an_earlier_run_stay_unless_they_were_measured_again(tmp_path: Path) -> None:
    for rows in ({"a": 1, "b": 2.0}, {"b": 3.0}):
        run = Figures()
        for name, measured in rows.items():
            run.add("Subject", name, measured, at_most(4), "MiB")
        run.write(tmp_path)
    page = (tmp_path / "reliability.md").read_text()
    assert "| a | 1.00 | at most 4.00 | MiB |" in page and "| b | 3.00 | at most 4.00 | MiB |" in page


def test_figures_out_of_their_bounds_fail_the_test_at_its_end() -> None:
    kept = list[str]()

    def measure() -> None:
        with judged(lambda name, *_: kept.append(name)) as figure:
            figure("share", 0.85, at_least(0.9), "of 1")
            figure("time", 3.0, at_most(4.0), "s")
            figure("memory", 70.0, at_most(64.0), "MiB")
            figure("calls", 5.0, None, "")

    told = r"^share: 0\.85 of 1, must be at least 0\.900\nmemory: 70 MiB, must be at most 64\.0$"
    with pytest.raises(pytest.fail.Exception, match=told):
        measure()
    assert kept == ["share", "time", "memory", "calls"]
