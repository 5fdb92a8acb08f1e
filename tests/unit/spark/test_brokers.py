"""Errors that last are reported at once, in plain words; others lead to new attempts."""

from __future__ import annotations

import http.client
import pickle
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.authority import Authority
from support.bulk.fake import Answer, FakeBulkApi, json_answer, script

from broker.client.bulk import Connection, Refused, Tls, Unreachable, WrongServer
from broker.client.bulk.connection import is_lasting
from broker.client.bulk.errors import is_passing
from broker.spark.brokers import Brokers
from broker.spark.errors import BrokerDownError, OptionError, WrongDoorError
from broker.spark.options import SHARED, Access, ParsedOptions, Wanted, access

EMPTY = json_answer({"broker": "b", "broker_id": "i", "partition": 0, "topics": []})


def never(_seconds: float) -> None:
    pytest.fail("this must not be tried again")


class Impatient(Connection):
    """It must not wait for another attempt."""

    _wait = staticmethod(never)


@pytest.fixture
def other_protocol() -> Iterator[str]:
    """What an NSQ server says to HTTP: a frame with an error in it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(4096)
                        client.sendall(b"\0\0\0\x12\0\0\0\1E_BAD_PROTOCOL")
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_port_of_something_else(other_protocol: str) -> None:
    with pytest.raises(WrongServer, match="does not use HTTP") as caught:
        Impatient(other_protocol).topics()
    assert str(caught.value).isprintable()
    assert not is_passing(pickle.loads(pickle.dumps(caught.value)))
    with pytest.raises(WrongServer, match="does not use TLS"):
        Impatient(f"https://{other_protocol}").topics()


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", days=-1)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    with FakeBulkApi(script(EMPTY), context) as fake:
        with pytest.raises(WrongServer, match=r"not trusted: certificate has expired$"):
            Impatient(fake.address, tls=Tls(ca_file=str(authority.file))).topics()
        with pytest.raises(WrongServer, match="not trusted: unable to get local issuer"):
            Impatient(fake.address).topics()


def test_another_http_server() -> None:
    with (
        FakeBulkApi(script(Answer(404, b"<html>"))) as fake,
        pytest.raises(Refused, match=r"HTTP status 404; .* may not be a bulk API"),
    ):
        Impatient(fake.address).topics()


def test_a_listener_that_hangs_up_may_want_tls() -> None:
    with (
        FakeBulkApi(script(Answer(drop=True))) as fake,
        pytest.raises(Unreachable, match="https://"),
    ):
        Impatient(fake.address, retries=0).topics()


@pytest.mark.parametrize("line", ["H", "HTTP", "HTTP/1.", "HTTP/1.1 2x0 OK", ""])
def test_a_torn_status_line_is_tried_again(line: str) -> None:
    assert not is_lasting(http.client.BadStatusLine(line) if line else EOFError())
    assert not is_lasting(http.client.RemoteDisconnected())
    assert not is_lasting(ConnectionRefusedError())


def reach(servers: str) -> Access:
    return access(ParsedOptions({"servers": servers, "fetchRetries": "0"}, SHARED))


def test_two_brokers_of_one_number() -> None:
    other = json_answer({"broker": "b", "broker_id": "other", "partition": 0, "topics": []})
    with (
        FakeBulkApi(script(EMPTY)) as one,
        FakeBulkApi(script(other)) as two,
        Brokers(reach(f"{one.address},{two.address}")) as brokers,
        pytest.raises(OptionError, match=f"{one.address} and {two.address} are both"),
    ):
        brokers.survey(Wanted(names=("t",)), patient=True)


def test_a_survey_says_why(other_protocol: str) -> None:
    with FakeBulkApi(script(EMPTY)) as fake:
        up = fake.address.removeprefix("http://")
        with Brokers(reach(f"{up},{other_protocol}")) as brokers:
            (text,) = brokers.survey(Wanted(names=("t",)), patient=True).down
            assert other_protocol in text
            assert "does not use HTTP" in text
            with pytest.raises(BrokerDownError, match="does not use HTTP"):
                brokers.survey(Wanted(names=("t",)), patient=False)
    with Brokers(reach(other_protocol)) as brokers, pytest.raises(WrongDoorError):
        brokers.survey(Wanted(names=("t",)), patient=True)
    with Brokers(reach(f"{up},{other_protocol}")) as brokers:
        with pytest.raises(BrokerDownError) as caught:  # the first of them may come back
            brokers.survey(Wanted(names=("t",)), patient=True)
        assert type(caught.value) is BrokerDownError
