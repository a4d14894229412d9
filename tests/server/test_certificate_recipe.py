"""The recipe for certificates in operations.md, run unchanged."""

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operations.md"
PROGRAM = f"{shlex.quote(sys.executable)} -c 'from ensue.cli import main; main()' "


def recipe() -> dict[str, list[str]]:
    """Return the blocks of the section, by language."""
    text = PAGE.read_text()
    section = text[text.index("### Make certificates") :]
    section = section[: section.index("\n## ")]
    found: dict[str, list[str]] = {}
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        found.setdefault(language, []).append(block)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shell(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_recipe_admits_its_client_and_rejects_others(tmp_path: Path) -> None:
    blocks = recipe()
    made = shell("set -e\n" + blocks["sh"][0], tmp_path)
    assert made.returncode == 0, made.stderr
    # As strict as Python 3.13 and newer.
    strict = shell("openssl verify -x509_strict -CAfile ca.pem server.pem auditor.pem", tmp_path)
    assert strict.returncode == 0, strict.stderr
    port = str(free_port())
    (tmp_path / "secure.toml").write_text(blocks["toml"][0].replace("7400", port))
    serve, export, publish, read = (
        line.replace("7400", port).replace("ensue ", PROGRAM, 1)
        for line in blocks["sh"][1].splitlines()
    )
    stranger = export.replace("&cert=auditor.pem&key=auditor.key", "")
    assert stranger != export
    with subprocess.Popen(
        shlex.split(serve), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            assert any("ready" in line for line in server.stderr)
            got = shell(f"set -e\n{export}\n{publish}\n{read}", tmp_path)
            assert got.returncode == 0, got.stderr
            assert "one teapot" in got.stdout
            refused = shell(f"{stranger}\n{publish} --wait 1", tmp_path)
            assert refused.returncode == 2, refused.stderr
            assert "certificate" in refused.stderr
        finally:
            server.terminate()


def test_example_user_may_read_the_topic_that_it_publishes() -> None:
    text = PAGE.read_text()
    shop = text[text.index("[users.shop]") : text.index("[users.auditor]")]
    assert 'publish = ["orders", "payments"]' in shop
    assert 'subscribe = ["orders", "orders.*"]' in shop
