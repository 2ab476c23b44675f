"""Tests of the line with which `relay dev` names its API."""

from relay.cli.dev import port_note


def test_another_port_than_the_default_comes_with_the_setting_for_other_terminals() -> None:
    assert port_note(8080, "http://127.0.0.1:8080") == ""
    assert port_note(0, "http://127.0.0.1:40123") == ""
    assert port_note(8080, "http://127.0.0.1:40123") == (
        "  (port 8080 is in use; in other terminals: export RELAY_API_URL=http://127.0.0.1:40123)"
    )
