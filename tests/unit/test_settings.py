"""Settings: which layer wins, what each mistake says, and that no secret is shown."""

from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from relay.config.setting_layers import load_settings, origins_of
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.domain.receiver import Quota


def _message(overrides: dict[str, object], environ: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        load_settings(overrides, environ)
    return str(caught.value)


def _file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "relay.yaml"
    file.write_text(text)
    return file


def test_the_defaults_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_API_PORT", "1")
    settings = Settings()
    assert settings == load_settings({}, {})
    assert (settings.api_host, settings.api_port) == ("127.0.0.1", 8080)
    assert settings.dedup_window == 7 * 86_400
    assert settings.max_payload_bytes == 1024 * 1024
    assert settings.answer_body_cap == 64 * 1024
    assert settings.redis_url.get_secret_value() == "redis://localhost:6379/0"
    assert settings.allow_http is None


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().api_port = 1  # type: ignore[misc]


def test_each_layer_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    secret = tmp_path / "port"
    secret.write_text("3\n")
    config = _file(tmp_path, "api_port: 4\n")
    overrides: dict[str, object] = {"api_port": 1}
    environ = {
        "RELAY_API_PORT": "2",
        "RELAY_API_PORT_FILE": str(secret),
        "RELAY_CONFIG_FILE": str(config),
    }
    assert load_settings(overrides, environ).api_port == 1
    overrides["api_port"] = None  # a flag that was not given
    assert load_settings(overrides, environ).api_port == 2
    del environ["RELAY_API_PORT"]
    assert load_settings(overrides, environ).api_port == 3
    del environ["RELAY_API_PORT_FILE"]
    assert load_settings(overrides, environ).api_port == 4
    del environ["RELAY_CONFIG_FILE"]
    assert load_settings(overrides, environ).api_port == 8080


def test_the_flag_for_the_config_file_wins_over_its_variable(tmp_path: Path) -> None:
    config = _file(tmp_path, "log_level: debug\nmax_payload_bytes: 2MiB\nallow_private_networks: [10.0.0.0/8]\n")
    settings = load_settings({"config_file": config}, {"RELAY_CONFIG_FILE": str(tmp_path / "absent")})
    assert settings.log_level == "debug"
    assert settings.max_payload_bytes == 2 * 1024 * 1024
    assert settings.allow_private_networks == (ip_network("10.0.0.0/8"),)


def test_values_from_the_environment_are_read_by_their_type() -> None:
    settings = load_settings(
        {},
        {
            "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8, ::1/128",
            "RELAY_ALLOW_PRIVATE_NAMES": "CI.Internal., *.Bücher.internal,localhost",
            "RELAY_ALLOW_HTTP": "true",
            "RELAY_DEDUP_WINDOW": "8d",
            "RELAY_LOG_LEVEL": "INFO",
            "RELAY_PUBLIC_URL": "https://relay.example/",
            "RELAY_API_KEY": "k-1",
            "HOME": "/nowhere",
        },
    )
    assert settings.allow_private_networks == (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert settings.allow_private_names == ("ci.internal", "*.xn--bcher-kva.internal", "localhost")
    assert settings.allow_http is True
    assert settings.dedup_window == 8 * 86_400
    assert settings.log_level == "info"
    assert settings.public_url == "https://relay.example"
    assert settings.api_key == SecretStr("k-1")


def test_quotas_are_read_and_none_is_no_quota(tmp_path: Path) -> None:
    config = _file(tmp_path, "source_quota: 6000/1m\n")
    environ = {"RELAY_CONFIG_FILE": str(config), "RELAY_API_KEY_QUOTA": "5/10"}  # of keys that were made, too
    settings = load_settings({}, environ)
    assert (settings.source_quota, settings.api_key_quota) == (Quota(6000, 60), Quota(5, 10))
    assert {one.name: one.value for one in origins_of(load_settings({}, environ))}["source_quota"] == "6000/60s"
    assert load_settings({}, environ | {"RELAY_SOURCE_QUOTA": "none"}).source_quota is None
    config.write_text("source_quota: {messages: -1, window_s: 0}\n")
    assert "source_quota: " in _message({}, environ)


@pytest.mark.parametrize(
    "environ",
    [{"RELAY_API_KEY": "", "RELAY_API_PORT": ""}, {"RELAY_TEST_KAFKA": "localhost:1", "OTHER_VARIABLE": "x"}],
    ids=["empty ones", "those of the tests and of other programs"],
)
def test_some_variables_count_as_not_set(environ: dict[str, str]) -> None:
    assert load_settings({}, environ) == Settings()


def test_sentry_s_own_variable_is_read_and_ours_wins() -> None:
    theirs = {"SENTRY_DSN": "https://theirs.example/1", "SENTRY_ENVIRONMENT": "staging"}
    assert load_settings({}, theirs).sentry_dsn == SecretStr("https://theirs.example/1")
    assert load_settings({}, theirs).sentry_environment == "staging"
    both = theirs | {"RELAY_SENTRY_DSN": "https://ours.example/1"}
    assert load_settings({}, both).sentry_dsn == SecretStr("https://ours.example/1")


def test_a_secret_file_loses_its_line_end_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" a b \r\n")
    assert load_settings({}, {"RELAY_NOTICE_PAGERDUTY_KEY_FILE": str(file)}).notice_pagerduty_key == SecretStr(" a b ")


BROKERS = "is not host:port; write the brokers as kafka-1:9092,kafka-2:9092"
REDIS = "write redis://host:6379/0; in a password write / # ? @ as %2F %23 %3F %40"
PRIVATE_NAME = (
    "is not a host name; write it without scheme, port and path, as ci.internal or *.internal; addresses belong into "
    "RELAY_ALLOW_PRIVATE_NETWORKS"
)
UNUSABLE_KEY = (
    "no request can have this key: it begins or ends with a space, or has a control character, such as a line break"
)
WRONG = [
    *((name, key, UNUSABLE_KEY) for name in ("API_KEY", "METRICS_KEY") for key in ("k-1\n", " k-1", "k-1 ", "k\x01")),
    (
        "HISTORY_URL",
        "postgresql:///relay?host=db-1,db-2&port=5432,abc",
        "not the URL of a history; write sqlite:///absolute/path/history.db"
        " or postgresql://user:password@host:5432/database",
    ),
    ("KAFKA_BOOTSTRAP_SERVERS", "kafka-1:9092,a..b:9", f"'a..b:9' {BROKERS}"),
    *(
        ("KAFKA_BOOTSTRAP_SERVERS", brokers, f"'{brokers}' {BROKERS}")
        for brokers in ("kafka:port", "a:b", "kafka:99999", "kafka:0", "[::g]:9092", "[]:9092")
    ),
    (
        "ALLOWED_HOSTS",
        "https://x",
        "'https://x' is not a host name; write it without scheme, port and path, as relay.example or *.relay.example",
    ),
    ("API_PROT", "1", "unknown environment variable; did you mean 'RELAY_API_PORT'?"),
    ("NOPE", "1", "unknown environment variable; `relay help settings` lists all"),
    ("API_PORT", "http", "'http' is not a whole number"),
    ("WINDOW_RECORDS", "0", "'0' is too small; at least 1"),
    ("ALLOW_HTTP", "maybe", "'maybe' is not allowed; allowed: true, false"),
    ("LOG_FORMAT", "xml", "'xml' is not allowed; allowed: 'auto', 'json' or 'console'"),
    (
        "DEDUP_WINDOW",
        "7 days",
        "'7 days' is not a duration; give a number of seconds, or a number with a unit: 500ms, 15s, 10m, 1h, 2d",
    ),
    ("MAX_PAYLOAD_BYTES", "1XB", "'1XB' is not a size; give a number of bytes, or 64KiB, 1MiB"),
    (
        "ALLOW_PRIVATE_NETWORKS",
        "10.0.0.1/8",
        "10.0.0.1/8 has host bits set; write a network as 10.0.0.0/8 or fd00::/8",
    ),
    *(
        ("ALLOW_PRIVATE_NAMES", name, f"{name!r} {PRIVATE_NAME}")
        for name in (
            "*",
            "*.",
            "a.*.internal",
            "http://ci",
            "ci:80",
            "10.1.2.3",
            "0x7f.1",
            "::1",
            "ci..internal",
            ".ci",
        )
    ),
    ("TOPIC_PREFIX", "a b", "'a b' is not allowed; at most 100 of a-z, A-Z, 0-9 and . _ -"),
    ("PUBLIC_URL", "relay.example", "not a URL; write it as https://host/path"),
    (
        "REDIS_URL",
        "http://:hunter2@h",
        "not the URL of a Redis; write redis://host:6379/0, rediss://... (TLS), unix:///path, "
        "redis+sentinel://host1:26379,host2:26379/<name of the master> or redis+cluster://host1:6379,host2:6379",
    ),
    ("REDIS_URL", "redis://:hunter2@h/abc", f"the database after the host is not a number; {REDIS}"),
    ("REDIS_URL", "redis://:hunter2@", f"a host is missing; {REDIS}"),
    ("REDIS_URL", "redis+cluster://h1:6379,:6379", f"a host is missing; {REDIS}"),
    ("REDIS_URL", "redis+sentinel://h1,h2:port/name", f"a port is not a number up to 65535; {REDIS}"),
    (
        "KAFKA_SASL_USERNAME",
        "u",
        "contradicts kafka_security_protocol PLAINTEXT; that has to be SASL_SSL or SASL_PLAINTEXT",
    ),
    (
        "SOURCE_QUOTA",
        "100",
        "'100' is not a quota; give messages and whole seconds or a duration, such as 100/1s, 6000/1m or 1000000/1d",
    ),
    ("WINDOW_OFFSETS", "10", "10 is less than window_records, 2000"),
    ("API_KEY_FILE", "/nowhere/key", "/nowhere/key cannot be read: No such file or directory"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_variable_is_named_with_what_is_allowed(name: str, value: str, message: str) -> None:
    assert _message({}, {f"RELAY_{name}": value}) == f"RELAY_{name}: {message}"


def test_a_wrong_flag_or_file_is_named_too() -> None:
    assert _message({"api_port": 99999}, {}) == "--port: 99999 is too big; at most 65535"
    file = "/nowhere/relay.yaml"
    assert _message({"config_file": file}, {}) == f"{file}: cannot be read: No such file or directory"


def test_what_a_login_at_kafka_lacks_is_named() -> None:
    environ = {"RELAY_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "RELAY_KAFKA_SASL_USERNAME": "u"}
    assert _message({}, environ).splitlines() == [
        f"RELAY_KAFKA_SASL_{name}: required, because kafka_security_protocol is SASL_SSL"
        for name in ("MECHANISM", "PASSWORD")
    ]


def test_all_mistakes_are_listed_one_a_line(tmp_path: Path) -> None:
    config = _file(tmp_path, "api_prt: 1\n")
    lines = _message({"config_file": config}, {"RELAY_NONSENSE_ALTOGETHER": "1", "RELAY_API_KEYS": "1"}).splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "RELAY_API_KEYS: unknown environment variable",
        "RELAY_NONSENSE_ALTOGETHER: unknown environment variable",
        f"{config}: api_prt: unknown setting",
    ]
    assert _message({}, {"RELAY_API_PORT": "x", "RELAY_METRICS_PORT": "y"}).count("\n") == 1


def test_the_name_of_a_variable_in_the_config_file_suggests_the_setting(tmp_path: Path) -> None:
    config = _file(tmp_path, "RELAY_API_PORT: 1\n")
    said = _message({"config_file": config}, {})
    assert said == f"{config}: RELAY_API_PORT: unknown setting; did you mean 'api_port'?"


def test_a_mistake_in_the_config_file_names_file_and_field(tmp_path: Path) -> None:
    config = _file(tmp_path, "redis_url: 12\nlog_level: 3\n")
    assert _message({"config_file": config}, {}).splitlines() == [
        f"{config}: redis_url: the value is not text; put it in quotes",
        f"{config}: log_level: 3 is not allowed; allowed: 'debug', 'info', 'warning' or 'error'",
    ]


def test_every_setting_and_its_file_form_have_a_variable(tmp_path: Path) -> None:
    for name in Settings.model_fields:
        variable = f"RELAY_{name.upper()}"
        assert load_settings({}, {variable: "", f"{variable}_FILE": ""}) == Settings()


def test_origins_of_says_where_each_value_came_from(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://user:hunter2@redis.example/1\n")
    config = _file(tmp_path, "hold_max: 90\n")
    environ = {"RELAY_REDIS_URL_FILE": str(secret), "RELAY_API_KEY": "hunter2", "RELAY_CONFIG_FILE": str(config)}
    shown = {name: (value, source) for name, value, source in origins_of(load_settings({"api_port": 1}, environ))}
    assert list(shown) == list(Settings.model_fields)
    assert shown["api_port"] == ("1", "--port")
    assert shown["api_key"] == ("********", "RELAY_API_KEY")
    assert shown["redis_url"] == ("redis://user:********@redis.example/1", "RELAY_REDIS_URL_FILE")
    assert shown["hold_max"] == ("90s", f"{config}: hold_max")
    assert shown["dedup_window"] == ("7d", "default")
    assert "hunter2" not in str(shown)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0?password=hunter2",
        "redis://:hunter2@h",
        "rediss://u:hunt@hunter2@h/1",
        "redis+sentinel://u:hunter2@h1,h2:1/name?sentinel_password=hunter2",
        "rediss+cluster://:hunter2@h1:1,h2:2",
        "redis://h/0?pass%77ord=hunter2",
        "redis://h/0?password=a@hunter2",
    ],
)
def test_a_password_in_the_redis_url_is_masked_wherever_it_is(url: str) -> None:
    shown = {name: value for name, value, _ in origins_of(load_settings({}, {"RELAY_REDIS_URL": url}))}
    assert "********" in shown["redis_url"]
    assert "hunter2" not in shown["redis_url"]


@pytest.mark.parametrize(
    "url", ["hunter2", *(f"redis://:hunter2{mark}hunter2@h" for mark in "/#?"), "redis://h/hunter2"]
)
def test_no_mistake_repeats_a_secret(url: str) -> None:
    environ = {"RELAY_REDIS_URL": url, "RELAY_KAFKA_SASL_PASSWORD": "hunter2", "RELAY_PUBLIC_URL": "x"}
    assert "hunter2" not in _message({}, environ)


@pytest.mark.parametrize(
    "servers", ["kafka", "kafka:9092", "a.b-c.example.:1, d_e:2", "[::1]:9092", "::1", "127.0.0.1:9092,127.0.0.1:9093"]
)
def test_brokers_are_written_in_any_of_the_usual_ways(servers: str) -> None:
    environ = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": servers}
    assert load_settings({}, environ).kafka_bootstrap_servers == servers


@pytest.mark.parametrize("place", ["mail:hunter2", "mail:99999", ":25", "[::1", "u:hunter2#@mail", "mail:0"])
def test_an_smtp_url_without_a_host_or_with_an_odd_port_is_refused(place: str) -> None:
    message = _message({}, {"RELAY_NOTICE_SMTP_URL": f"smtp://{place}"})
    assert "not the URL of an SMTP server" in message
    assert "hunter2" not in message
