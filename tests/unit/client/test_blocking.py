"""The client without an event loop: the same calls, waited for."""

import threading

import pytest

from attendant_client import BlockingClient, Delta, HealthStatus, InvalidArgument
from tests.unit.client.fake_server import Served


def test_every_call(server: Served) -> None:
    with BlockingClient(server.target, timeout=20) as client:
        assert client.generate("ab", beam_size=2).best.text == "AB"
        assert [one.best.text for one in client.generate(["ab", "c"])] == ["AB", "C"]
        assert [one.best.text for one in client.generate_many(iter("abc"))] == ["A", "B", "C"]
        assert client.score("ab", "AB").log_prob == -1.0
        assert [model.name for model in client.models()] == ["fake", "other"]
        assert client.model("fake").name == "fake"
        assert client.health() is HealthStatus.SERVING
        stream = client.stream("ab")
        assert list(stream) == [Delta(tokens=("A",), text="A"), Delta(tokens=("B",), text="B")]
        assert stream.generation.best.text == "AB"
        with pytest.raises(InvalidArgument):
            client.generate("bad")
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.generate("a")
    client.close()


def test_leaving_early_cancels(server: Served) -> None:
    with BlockingClient(server.target) as client:
        for answer in client.generate_many(["a", "b"] * 100, concurrency=2):
            assert answer.best.text == "A"
            break
        for delta in client.stream("abc"):
            assert delta.text == "A"
            break
        assert client.generate("a").best.text == "A"
    assert len(server.seq2seq.requests) < 50


def test_threads_may_share_it(server: Served) -> None:
    found: list[str] = []
    with BlockingClient(server.target) as client:
        ask = lambda: found.append(client.generate("slow").best.text)  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["SLOW"] * 8 and server.seq2seq.max_in_flight > 1


def test_what_it_refuses_to_be_made_of_leaves_no_thread(server: Served) -> None:
    with pytest.raises(ValueError, match="timeout"):
        BlockingClient(server.target, timeout=-1)
    assert not [thread for thread in threading.enumerate() if thread.name == "attendant-client"]
