"""The settings of a process: what there is, what is allowed, the defaults, and the layers that give them values."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from relay.config.durations import Duration, PositiveDuration
from relay.config.problems import explain, raise_all, unknown
from relay.config.quota_text import QuotaSetting
from relay.config.setting_text import SECRET_SETTINGS, shown_value
from relay.config.setting_values import (
    Count,
    HostNames,
    Keys,
    Networks,
    Origins,
    Port,
    PrivateNames,
    Secret,
    Secrets,
    SessionSecrets,
    Share,
    Size,
    VariableNames,
    check_brokers,
    check_history_url,
    check_redis_url,
    check_topic_prefix,
    hosts_and_networks,
    lowered,
    none_if_said,
    url_without_slash,
)
from relay.config.strict_yaml import read_mapping
from relay.domain.receiver import Verification

ENV_PREFIX: Final = "RELAY_"
_SET: Final = "the command itself"
"""Where a value comes from that nobody gave: `relay dev` sets some."""
CONFIG_FILE: Final = "config_file"
"""Among the overrides: the YAML file to read settings from. In the environment: RELAY_CONFIG_FILE."""
ALSO_FROM: Final = {
    "no_proxy": "no_proxy",
    "NO_PROXY": "no_proxy",
    "SENTRY_DSN": "sentry_dsn",
    "SENTRY_ENVIRONMENT": "sentry_environment",
}
"""Variables without our prefix that are heeded, too."""


class Settings(BaseSettings):
    """Durations are in seconds, sizes in bytes. `Settings()` has the defaults; `load_settings` reads the rest."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    kafka_bootstrap_servers: Annotated[str, Field(min_length=1), AfterValidator(check_brokers)] = "localhost:9092"
    """Brokers to begin with, as `kafka-1:9092,kafka-2:9092`."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How brokers are talked to: with TLS (`SSL`), a login (`SASL_...`), or both."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """How the login is made; required with `SASL_...`."""
    kafka_sasl_username: str | None = None
    """Likewise."""
    kafka_sasl_password: Secret | None = None
    """Likewise."""
    kafka_ca_file: Path | None = None
    """Certificates that the brokers' certificates are checked with, in place of the system's."""
    kafka_certificate_file: Path | None = None
    """Our certificate, for brokers that ask for one."""
    kafka_key_file: Path | None = None
    """Its key. None: it is in the same file."""
    kafka_replication_factor: Count | None = None
    """None: the broker's own default."""
    kafka_session_timeout: PositiveDuration = 15.0
    """After this long without a sign of life another process takes over the partitions of one."""
    kafka_isolation: Annotated[Literal["read_committed", "read_uncommitted"], BeforeValidator(lowered)] = (
        "read_committed"
    )
    """Of what transactional producers write: only committed transactions, or open and aborted ones, too."""
    kafka_wait: Duration = 60.0
    """How long `topics apply` and `receivers apply` wait for a cluster that answers and is not ready yet."""
    redis_url: Annotated[SecretStr, AfterValidator(check_redis_url)] = SecretStr("redis://localhost:6379/0")
    """`redis://`, `rediss://` or `unix://`, one server; `redis+sentinel://` and `redis+cluster://`, several."""
    receivers_file: Path = Path("receivers.yaml")
    """Declares receivers and sources; read again when it changes."""
    topic_prefix: Annotated[str, AfterValidator(check_topic_prefix)] = ""
    """Before the names of topics, consumer groups and keys in Redis."""
    api_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Where the API listens; beyond loopback it does not start without a key."""
    api_port: Port = 8080
    """0: a free one."""
    api_shared_port: Annotated[Literal["installation", "any"], BeforeValidator(lowered)] = "installation"
    """Which processes of this user may listen on the same port: those of this installation, or any. `any` is for an
    upgrade from a release that does not say whose its port is."""
    public_url: Annotated[str, AfterValidator(url_without_slash)] | None = None
    """Where receivers reach the API; without a slash at the end."""
    api_url: Annotated[str, AfterValidator(url_without_slash)] | None = None
    """Where the commands find the API. None: at `api_host` and `api_port`."""
    api_key: Secret | None = None
    """A key with the scope `admin`, beside those that are made."""
    metrics_key: Secret | None = None
    """A key with the scope `metrics` alone, for what scrapes `/metrics`."""
    api_key_quota: QuotaSetting = None
    """How many messages may come in over HTTP with each key, `api_key` or one that was made, as 6000/1m."""
    source_quota: QuotaSetting = None
    """How many may come in over HTTP of each source whose entry says nothing about that."""
    api_owner_receivers: Count = 1_000
    """Receivers that an owner may register with a key of their own (`owner:<id>`)."""
    pages: bool = True
    """Serve the pages for people, under `/ui/` of the API."""
    api_insecure: bool = False
    """Serve the API beyond this machine although there is no key."""
    allowed_hosts: HostNames = ()
    """What the API may be called in a Host header, beside loopback, `api_host` and the host of `public_url`."""
    api_connections: Count | None = None
    """Open connections to the API of a process. None: 1,000, or a quarter of the file descriptors if that is less."""
    api_connections_per_address: Count | None = None
    """None: half of them."""
    api_body_memory: Size | None = None
    """Bytes of bodies that a process holds at a time, over all requests. None: 64 MiB, or twice the largest body."""
    api_wait_max: Duration = 30.0
    """For which a request with `wait` waits for the receiver's answer at most."""
    api_waiters: Count | None = None
    """Requests of a process that may wait so at a time; others get 202 at once. None: one in four `api_connections`."""
    answer_secret: Secrets = ()
    """Signs the tokens of answer URLs: the first one does, and each proves them. None: `relay dev` keeps one by itself,
    and `relay run` sends no answer URLs."""
    session_secret: SessionSecrets = ()
    """Signs sessions and links into the portal: the first one does, and each proves them; 16 characters at least. None:
    made from `answer_secret`; without that, too, one that this launch forgets."""
    portal_origins: Origins = ()
    """Of pages that may show the portal in a frame, as https://app.example."""
    secrets_key: Keys = ()
    """Keys, 32 bytes of base64 each, for secrets that are given over the API: the first encrypts, and each decrypts.
    None: `relay dev` keeps one by itself, and `relay run` takes no such secrets."""
    secrets_from: VariableNames = ()
    """Variables that `${NAME}` in receivers.yaml may name; empty: all but the relay's own and credentials of clouds."""
    api_secrets_from: VariableNames = ()
    """Those of them that `${NAME}` in a receiver made over the API may name; empty: none."""
    api_verification: Verification = "none"
    """What a receiver made over the API has to prove about its URL before it is sent anything. `none`: what it says."""
    allow_private_networks: Networks = ()
    """Networks of private use, or of this machine, whose addresses may be sent to, as `10.0.0.0/8`."""
    allow_private_names: PrivateNames = ()
    """Host names that may lead to addresses of private use or of this machine; `*.internal`: all under that."""
    allow_http: bool | None = None
    """Plain http endpoints. None: only in `allow_private_networks`, and to private addresses of those names."""
    dedup_window: PositiveDuration = 604_800.0
    """For which a message that is over is known, so that the same id does nothing."""
    strict_json: bool = False
    """Refuse payloads over HTTP that are not the JSON that their content type says, in place of a warning."""
    max_payload_bytes: Size = ByteSize(1_048_576)
    """Largest payload that is taken."""
    answer_body_cap: Size = ByteSize(65_536)
    """Bytes of an answer that are kept; what is longer is cut, and marked so."""
    window_records: Count = 2_000
    """Unfinished records of a partition at a time."""
    window_offsets: Count = 20_000
    """Offsets between the first unfinished record of a partition and the last one read."""
    hold_max: Duration = 60.0
    """Longest wait that is held in memory; a longer one is parked."""
    max_requests: Count | None = None
    """Requests to receivers and callbacks under way at a time, per process. None: as many as descriptors allow."""
    memory_budget: Size | None = None
    """Bytes of records that a process holds at a time (`64MiB`); what waits beyond stays in the log. None: a quarter of
    what the process may have (its cgroup's limit, else the machine's memory), at most 512 MiB."""
    parked_per_receiver: Count = 100_000
    """Messages of a receiver that may wait parked."""
    parked_total: Count = 1_000_000
    """Of all receivers and sources; none of them gets more than is left free for the others."""
    shutdown_grace: Duration = 30.0
    """For which a process that is to stop goes on with what it has begun."""
    rebuild_rate: Count = 5_000
    """Records a second that are read, at most, to make finished messages known again after Redis lost its memory."""
    history_url: Annotated[
        Annotated[SecretStr, AfterValidator(check_history_url)] | None, BeforeValidator(none_if_said)
    ] = None
    """Where what happened is kept, to be searched: `sqlite:///path`, `postgresql://...` or `none`. Without it in SQLite
    where one machine runs all (`relay dev`; `relay run` whose brokers and Redis are on loopback), else nowhere."""
    history_bodies: Annotated[ByteSize, Field(ge=0)] = ByteSize(0)
    """Bytes of each message's body that are kept there, and with them its headers; 0: neither."""
    history_retention: PositiveDuration = 604_800.0
    """How long what happened is kept there."""
    attempt_log: Share = 1.0
    """Share of the messages whose requests are told on `delivery_attempts`, 0 to 1; failed ones are of all. 0: none."""
    metrics_port: Port | None = None
    """Where a process without the API serves `/livez`, `/readyz` and `/metrics`."""
    log_format: Annotated[Literal["auto", "json", "console"], BeforeValidator(lowered)] = "auto"
    """`auto`: for people in a terminal, else JSON."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lowered)] = "info"
    """The least urgent that is told."""
    sentry_dsn: Secret | None = None
    """Where failures are reported. None: nowhere."""
    sentry_environment: str | None = None
    """What Sentry calls this installation."""
    ca_file: Path | None = None
    """Authorities that are trusted besides the system's, by endpoints without a `tls.ca` of their own."""
    egress_proxy: Secret | None = None
    """`http://[user:password@]host:port`, through which receivers and callbacks are reached. Where a name leads is then
    the proxy's business: only literal addresses are checked here."""
    no_proxy: Annotated[tuple[str, ...], BeforeValidator(hosts_and_networks)] = ()
    """What is reached without the proxy: `*`, names (with all under them), addresses and networks; `host:port`, too."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: `load_settings` reads the layers, as it must know where each value came from."""
        return (init_settings,)

    @field_validator("kafka_sasl_mechanism", "kafka_sasl_username", "kafka_sasl_password")
    @classmethod
    def _agrees_with_protocol(cls, value: object, info: ValidationInfo) -> object:
        protocol = info.data.get("kafka_security_protocol")
        if protocol is None:  # it is not valid itself
            return value
        if protocol.startswith("SASL_") and value is None:
            raise ValueError(f"required, because kafka_security_protocol is {protocol}")
        if not protocol.startswith("SASL_") and value is not None:
            raise ValueError(
                f"contradicts kafka_security_protocol {protocol}; that has to be SASL_SSL or SASL_PLAINTEXT"
            )
        return value

    @field_validator("kafka_certificate_file", "kafka_key_file")
    @classmethod
    def _is_for_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        protocol = info.data.get("kafka_security_protocol")
        if value is not None and protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
            raise ValueError(f"contradicts kafka_security_protocol {protocol}; that has to be SASL_SSL or SSL")
        is_alone = info.field_name == "kafka_key_file" and info.data.get("kafka_certificate_file", "") is None
        if value is not None and is_alone:
            raise ValueError("needs kafka_certificate_file, whose key it is")
        return value

    @field_validator("window_offsets")
    @classmethod
    def _not_under_records(cls, offsets: int, info: ValidationInfo) -> int:
        records = info.data.get("window_records", 0)
        if offsets < records:
            raise ValueError(f"{offsets} is less than window_records, {records}")
        return offsets

    @field_validator("parked_total")
    @classmethod
    def _not_under_one_receiver(cls, total: int, info: ValidationInfo) -> int:
        one = info.data.get("parked_per_receiver", 0)
        if total < one:
            raise ValueError(f"{total} is less than parked_per_receiver, {one}")
        return total

    def remember(self, origins: Mapping[str, str]) -> None:
        """Where the fields that were given came from, for people; copies know it, too."""
        self._origins = dict(origins)

    def origin_of(self, name: str) -> str | None:
        """None: nobody has said."""
        return self._origins.get(name)


class Given(NamedTuple):
    """A value that a layer gives. `where`, for people: `--api-port`, `RELAY_API_PORT`, `relay.yaml: api_port`."""

    value: object
    where: str


class Origin(NamedTuple):
    """A setting as it is in force. `value`: as text, secrets masked. `source`: where it came from, or `default`."""

    name: str
    value: str
    source: str


def load_settings(overrides: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """flags (`overrides`: field -> value, None if not given) > environment > `*_FILE` secrets > YAML file > defaults.

    Raises UserError with one line per mistake: where, what, and what is allowed.
    """
    given = _given(overrides, environ)
    settings = _validated(given)
    settings.remember({name: one.where for name, one in given.items()})
    return settings


def sources_of(overrides: Mapping[str, object], environ: Mapping[str, str]) -> list[Origin]:
    """Every setting, its value, and where that came from. Raises UserError as `load_settings`."""
    return origins_of(load_settings(overrides, environ))


def origins_of(settings: Settings) -> list[Origin]:
    """Every setting as it is in force, and where it came from, as far as `load_settings` has read them."""
    given = settings.model_fields_set
    return [
        Origin(name, shown_value(name, value), (settings.origin_of(name) or _SET) if name in given else "default")
        for name, value in settings
    ]


def _validated(given: Mapping[str, Given]) -> Settings:
    try:
        return Settings.model_validate({name: one.value for name, one in given.items()})
    except ValidationError as error:
        found = explain(error, Settings, hidden=SECRET_SETTINGS)
    raise_all(f"{_where(str(place[0]), given)}: {text}" for place, text in found)
    raise AssertionError("a validation error without errors")


def _where(name: str, given: Mapping[str, Given]) -> str:
    return given[name].where if name in given else env_name(name)


def _given(overrides: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Given]:
    mistakes = list(_unknown_variables(environ))
    flags = {
        name: Given(value, "--" + name.replace("_", "-"))
        for name, value in overrides.items()
        if value is not None and name != CONFIG_FILE
    }
    config_file = overrides.get(CONFIG_FILE) or environ.get(env_name(CONFIG_FILE))
    layers: ChainMap[str, Given] = ChainMap(
        flags,
        _from_environment(environ),
        _from_secret_files(environ, mistakes),
        _from_yaml(Path(str(config_file)), mistakes) if config_file else {},
    )
    raise_all(mistakes)
    return dict(layers)


def env_name(field: str) -> str:
    """`RELAY_API_PORT` for `api_port`."""
    return ENV_PREFIX + field.upper()


def _variables() -> dict[str, str]:
    """Variable -> field. When both names of a setting are set, the one with our prefix counts: it comes last."""
    return {**ALSO_FROM, **{env_name(field): field for field in Settings.model_fields}}


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = [*_variables(), env_name(CONFIG_FILE)]
    allowed = {*known, *(f"{name}_FILE" for name in known)}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and not name.startswith(f"{ENV_PREFIX}TEST_") and name not in allowed:
            yield f"{name}: {unknown('environment variable', name, known)}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    # empty counts as not set: that is what `NAME: ${NAME:-}` in a compose file means
    return {field: Given(environ[name], name) for name, field in _variables().items() if environ.get(name)}


def _from_secret_files(environ: Mapping[str, str], mistakes: list[str]) -> dict[str, Given]:
    found = {}
    for name, field in _variables().items():
        path = environ.get(f"{name}_FILE")
        if not path:
            continue
        try:
            found[field] = Given(Path(path).read_text(encoding="utf-8").rstrip("\r\n"), f"{name}_FILE")
        except (OSError, UnicodeDecodeError) as error:
            mistakes.append(f"{name}_FILE: {path} cannot be read: {getattr(error, 'strerror', 'it is not UTF-8 text')}")
    return found


def _from_yaml(path: Path, mistakes: list[str]) -> dict[str, Given]:
    found = {}
    for key, value in read_mapping(path).items():
        name = str(key)
        if name in Settings.model_fields:
            found[name] = Given(value, f"{path}: {name}")
        else:
            mistakes.append(f"{path}: {name}: {unknown('setting', name, list(Settings.model_fields))}")
    return found
