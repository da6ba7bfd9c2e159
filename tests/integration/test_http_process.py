"""Tests of the HTTP port of `python -m server`: with the page, encryption and tokens, and without the API."""

import re
import ssl
from pathlib import Path

from tests.certificates import new_authority
from tests.http_serving import Http
from tests.paths import ROOT
from tests.server_process import server

MODEL = str(ROOT / "models" / "g2p-en")
PAGE = ROOT / "server" / "http" / "page"
TOKEN = "a-token-of-tests-0123456789"


def test_the_page_and_the_api_encrypted_with_tokens(tmp_path: Path) -> None:
    """Tests the server on its own event loop, uvloop."""
    authority = new_authority(tmp_path)
    certificate, key = authority.issue("server")
    (tmp_path / "tokens").write_text(f"search {TOKEN}\n")
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--tokens", str(tmp_path / "tokens")]
    with server(MODEL, *tls) as running:
        assert f"playground on https://127.0.0.1:{running.metrics_port}/; " in running.line
        web = Http(running.metrics_port, ssl.create_default_context(cafile=str(authority.certificate)))
        check_page(web)
        body = {"text": "phoneme" * 5, "output": {"attention": True}}
        for _ in range(20):
            assert web.ask("POST", "/v1/generate", body).status == 401
            assert web.ask("POST", "/v1/generate?stream=1", body, authorization=f"Bearer {TOKEN}").status == 200
        assert not [line for line in running.log().splitlines() if "error" in line]


def check_page(web: Http) -> None:
    page = web.ask("GET", "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    files = re.findall(r'"(page/[a-z.]+)"', page.text)
    assert set(files) == {f"page/{file.name}" for file in PAGE.iterdir() if file.suffix != ".html"}
    assert all(web.ask("GET", f"/{file}").status == 200 for file in files)


def test_without_the_api_there_are_metrics_and_health_alone(tmp_path: Path) -> None:
    certificate, key = new_authority(tmp_path).issue("server")
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with server(MODEL, "--no-http", *tls) as running:
        assert "playground" not in running.line
        web = Http(running.metrics_port)
        assert running.metrics(), "unencrypted"
        assert web.ask("GET", "/readyz").status == 200
        for path in ("/", "/v1/models", "/openapi.json"):
            assert web.ask("GET", path).status == 404
