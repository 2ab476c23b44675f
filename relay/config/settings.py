"""The settings of a process: names, types and defaults. `relay/config/setting_layers.py` loads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from relay.config.entry_types import (
    Count,
    Duration,
    FieldData,
    PositiveDuration,
    QuotaSetting,
    check_url,
    checked,
    field_check,
)
from relay.config.setting_values import (
    Addresses,
    BearerKey,
    HistoryUrl,
    HostNames,
    HostsAndNetworks,
    HotReceiverMode,
    Hours,
    Keys,
    LogoFile,
    Networks,
    Origins,
    Owners,
    Port,
    PrivateJwk,
    PrivateNames,
    Secret,
    Secrets,
    SessionSecrets,
    Size,
    SmtpUrl,
    VariableNames,
    WebhookUrl,
    check_brokers,
    check_redis_url,
    check_topic_prefix,
    lowered,
    url_without_slash,
)
from relay.domain.receiver import Verification


class Settings(BaseModel):
    """Durations are in seconds, sizes in bytes. `Settings()` has the defaults; `load_settings` reads the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    kafka_bootstrap_servers: Annotated[str, Field(min_length=1), checked(check_brokers)] = "localhost:9092"
    """Bootstrap brokers, such as `kafka-1:9092,kafka-2:9092`."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol for brokers: with TLS (`SSL`), authentication (`SASL_...`), or both."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """Authentication mechanism; required with `SASL_...`."""
    kafka_sasl_username: str | None = None
    """User name; required with `SASL_...`."""
    kafka_sasl_password: Secret | None = None
    """Password; required with `SASL_...`."""
    kafka_ca_file: Path | None = None
    """Authorities (PEM) that are trusted for the brokers' certificates, instead of the system's."""
    kafka_certificate_file: Path | None = None
    """Client certificate (PEM), for brokers that require one."""
    kafka_key_file: Path | None = None
    """Private key of the client certificate. None: it is in the same file."""
    kafka_replication_factor: Count | None = None
    """Replication factor of topics that the relay creates. None: the broker's default."""
    kafka_session_timeout: PositiveDuration = 15.0
    """Time without heartbeats after which another process takes over a process's partitions. Brokers allow 6s to 30m,
    unless their `group.min.session.timeout.ms` and `group.max.session.timeout.ms` differ."""
    kafka_isolation: Annotated[Literal["read_committed", "read_uncommitted"], BeforeValidator(lowered)] = (
        "read_committed"
    )
    """Which records of transactional producers are read: only committed ones, or open and aborted ones, too."""
    kafka_wait: Duration = 60.0
    """How long `topics apply` and `receivers apply` wait for a cluster that answers but is not ready yet."""
    redis_url: Annotated[SecretStr, checked(check_redis_url)] = SecretStr("redis://localhost:6379/0")
    """URL of Redis: `redis://`, `rediss://`, `unix://` (one server), `redis+sentinel://` or `redis+cluster://`."""
    receivers_file: Path = Path("receivers.yaml")
    """File that declares receivers and sources; reloaded when it changes."""
    topic_prefix: Annotated[str, checked(check_topic_prefix)] = ""
    """Prefix of the names of topics, consumer groups and Redis keys."""
    api_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address on which the API listens (`0.0.0.0`: all of IPv4; `::`: all). On any but loopback it does not start
    without a key."""
    api_port: Port = 8080
    """Port of the API. 0: any free port."""
    api_shared_port: Annotated[Literal["installation", "any"], BeforeValidator(lowered)] = "installation"
    """Which processes of this user may share the port: those of this installation, or (for old releases) `any`."""
    public_url: Annotated[str, AfterValidator(url_without_slash)] | None = None
    """URL at which receivers reach the API, without a trailing slash."""
    api_url: Annotated[str, AfterValidator(url_without_slash)] | None = None
    """URL of the API for commands. None: from `api_host` and `api_port`."""
    api_key: BearerKey | None = None
    """API key with the scope `admin`, in addition to created keys."""
    metrics_key: BearerKey | None = None
    """API key with the scope `metrics` only, for scraping `/metrics`."""
    api_key_quota: QuotaSetting = None
    """Maximum number of messages over HTTP with each API key (`api_key`, or a created one), such as 6000/1m."""
    source_quota: QuotaSetting = None
    """Maximum number of messages over HTTP from each source without a quota in its entry."""
    api_owner_receivers: Count = 1_000
    """Maximum number of receivers that an owner may register with a key of its own (`owner:<id>`)."""
    pages: bool = True
    """Serve the web UI, under `/ui/` of the API."""
    api_insecure: bool = False
    """Serve the API beyond this machine even without a key."""
    allowed_hosts: HostNames = ()
    """Host names accepted in a Host header, beside loopback, `api_host` and the host of `public_url`."""
    api_connections: Count | None = None
    """Maximum open connections to a process's API. None: 1,000, or a quarter of the descriptors if that is less."""
    api_connections_per_address: Count | None = None
    """Maximum open connections from one client address. None: half of `api_connections`."""
    api_body_memory: Size | None = None
    """Maximum bytes of request bodies that a process holds at a time. None: 64 MiB, or twice the largest body."""
    api_wait_max: Duration = 30.0
    """Maximum time for which a request with `wait` waits for the receiver's answer."""
    api_waiters: Count | None = None
    """Maximum number of waiting requests of a process; others get 202 at once. None: a quarter of `api_connections`."""
    answer_secret: Secrets = ()
    """Secrets of the tokens in answer URLs: the first signs, and each verifies. None: `relay dev` creates and keeps
    one, and `relay run` sends no answer URLs."""
    answer_jwk: PrivateJwk | None = None
    """Private JWK, or JWK Set, with which encrypted answers of receivers are decrypted. None: they stay encrypted."""
    payload_url_lifetime: PositiveDuration = 43_200.0
    """Time for which a receiver with `payload: thin` can read a payload after an attempt."""
    session_secret: SessionSecrets = ()
    """Secrets of sessions and portal links, at least 16 characters: the first signs, and each verifies. None: derived
    from `answer_secret`; without that, too, a random one for each start."""
    portal_origins: Origins = ()
    """Origins of pages that may show the portal in a frame, such as https://app.example."""
    portal_name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")] = "Relay"
    """Name of the product in the portal."""
    portal_logo: LogoFile | None = None
    """File of the portal's logo: SVG, PNG, WebP or JPEG, at most 64 KiB. None: the mark of the relay."""
    portal_colour: Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")] | None = None
    """Colour of links in the portal, as `#0a6b66`; adapted to the contrast of WCAG 2 AA. None: that of the relay."""
    portal_theme: Literal["system", "light", "dark"] = "system"
    """Colours of the portal. `system`: the visitor chooses."""
    portal_strings: Path | None = None
    """JSON file with texts of the portal by the English ones that they replace. `relay portal strings` prints these."""
    secrets_key: Keys = ()
    """Keys, base64 of 32 bytes each, for secrets that are given over the API: the first encrypts, and each decrypts.
    None: `relay dev` creates and keeps one, and `relay run` accepts no such secrets."""
    secrets_from: VariableNames = ()
    """Variables that `${NAME}` in receivers.yaml may name; empty: all but the relay's own and cloud credentials."""
    api_secrets_from: VariableNames = ()
    """Those of `secrets_from` that `${NAME}` in a receiver registered over the API may name; empty: none."""
    api_verification: Verification = "none"
    """Verification that receivers registered over the API have to pass before anything is sent. `none`: their own."""
    allow_private_networks: Networks = ()
    """Private or loopback networks to which the relay may send, such as `10.0.0.0/8`."""
    allow_private_names: PrivateNames = ()
    """Host names that may resolve to private or loopback addresses; `*.internal`: all below `internal`."""
    adhoc_endpoints: Origins = ()
    """Origins of endpoints that messages may bring along, such as https://hooks.example; empty: none may."""
    allow_http: bool | None = None
    """Allow plain http endpoints. None: only in `allow_private_networks`, and to private addresses of those names."""
    hot_receivers: HotReceiverMode = "off"
    """`tell`: report receivers that take more than their share of the shared lane, in the log and as a metric. `move`:
    also give them a lane of their own until they are calm. With `tell` and `off`, those that were moved return."""
    dedup_window: PositiveDuration = 604_800.0
    """Time for which the id of a finished message is known, so that a duplicate has no effect."""
    strict_json: bool = False
    """Reject payloads over HTTP with a JSON content type that are not valid JSON, instead of a warning."""
    max_payload_bytes: Size = ByteSize(1_048_576)
    """Maximum size of a payload."""
    answer_body_cap: Size = ByteSize(65_536)
    """Maximum bytes of an answer; a longer one is cut and marked as truncated."""
    window_records: Count = 2_000
    """Maximum number of unfinished records of a partition."""
    window_offsets: Count = 20_000
    """Maximum distance between the first unfinished record of a partition and the last one read, in offsets."""
    hold_max: Duration = 60.0
    """Longest wait for which a message is held in memory; for a longer one it is parked."""
    max_requests: Count | None = None
    """Maximum requests to receivers and callbacks in flight, per process. None: as many as descriptors allow."""
    memory_budget: Size | None = None
    """Maximum bytes of records that a process holds (`64MiB`); further records stay in the log. None: a quarter of the
    process's memory limit (its cgroup's, or else the machine's memory), at most 512 MiB."""
    parked_per_receiver: Count = 100_000
    """Maximum number of parked messages of a receiver."""
    parked_total: Count = 1_000_000
    """Maximum number of parked messages of all receivers and sources; none may have more than is free for the
    others."""
    shutdown_grace: Duration = 30.0
    """Time for which a stopping process continues the work that it has begun."""
    rebuild_rate: Count = 5_000
    """Maximum records per second that are read to restore finished messages after Redis lost its data."""
    history_url: HistoryUrl = None
    """URL of the history database: `sqlite:///path`, `postgresql://...` or `none`. Default: SQLite if everything runs
    on one machine (`relay dev`, or `relay run` with brokers and Redis on loopback), else none."""
    history_bodies: Annotated[ByteSize, Field(ge=0)] = ByteSize(0)
    """Bytes of each message's body that the history stores, together with its headers; 0: neither."""
    history_retention: PositiveDuration = 604_800.0
    """How long the history is kept."""
    attempt_log: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the messages whose requests are recorded on `delivery_attempts`, 0 to 1; failed ones always. 0: none."""
    metrics_port: Port | None = None
    """Port on which a process without the API serves `/livez`, `/readyz` and `/metrics`."""
    log_format: Annotated[Literal["auto", "json", "console"], BeforeValidator(lowered)] = "auto"
    """Format of the log. `auto`: `console` in a terminal, else `json`."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lowered)] = "info"
    """Minimum level of logged events."""
    sentry_dsn: Secret | None = None
    """Sentry DSN to which failures are reported. None: nowhere."""
    sentry_environment: str | None = None
    """Name of this installation in Sentry."""
    notice_slack_url: WebhookUrl | None = None
    """Incoming webhook of Slack, or of a chat that takes the same, for notices about incidents. None: none are sent."""
    notice_email_to: Addresses = ()
    """E-mail addresses for notices, with commas. They need `notice_smtp_url` and `notice_email_from`."""
    notice_email_from: str | None = None
    """Sender's address of these e-mails."""
    notice_smtp_url: SmtpUrl | None = None
    """Server of these e-mails: `smtp://[user:password@]host[:port]`, with STARTTLS if it offers that, or `smtps://`."""
    notice_pagerduty_key: Secret | None = None
    """Integration key of PagerDuty's Events API v2, which gets each change of an incident at once."""
    notice_pagerduty_url: Annotated[str, AfterValidator(check_url)] = "https://events.pagerduty.com/v2/enqueue"
    """Address of that API."""
    notice_quiet_hours: Hours | None = None
    """Hours without chat and e-mail, such as `22:00-07:00 Europe/Berlin` (default UTC); changes are sent afterwards."""
    notice_digest: Duration = 60.0
    """Time for which changes are gathered into one message to chat and e-mail."""
    notice_owners: Owners | None = None
    """Notices for owners about their receivers, as JSON: `{"team-42": {"slack_url": "https://...", "email_to": [],
    "pagerduty_key": "...", "quiet_hours": "...", "digest": "5m"}}`. Each field is optional."""
    ca_file: Path | None = None
    """Authorities trusted in addition to the system's, for endpoints without a `tls.ca` of their own. Read at the
    start: restart to replace them."""
    egress_proxy: Secret | None = None
    """Proxy for receivers and callbacks, `http://[user:password@]host:port`. The proxy then resolves host names, so the
    relay can only check literal addresses."""
    no_proxy: HostsAndNetworks = ()
    """Targets reached without the proxy: `*`, names (with subdomains), addresses and networks; also `host:port`."""

    @field_check("kafka_sasl_mechanism", "kafka_sasl_username", "kafka_sasl_password")
    def _agrees_with_protocol(cls, value: object, data: FieldData) -> None:
        protocol = data.get("kafka_security_protocol")
        if protocol is None:  # it is invalid itself
            return
        if protocol.startswith("SASL_") and value is None:
            raise ValueError(f"required, because kafka_security_protocol is {protocol}")
        if not protocol.startswith("SASL_") and value is not None:
            raise ValueError(
                f"contradicts kafka_security_protocol {protocol}; that has to be SASL_SSL or SASL_PLAINTEXT"
            )

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

    @field_validator("window_offsets", "parked_total")
    @classmethod
    def _not_under_its_part(cls, whole: int, info: ValidationInfo) -> int:
        name = "window_records" if info.field_name == "window_offsets" else "parked_per_receiver"
        if whole < info.data.get(name, 0):
            raise ValueError(f"{whole} is less than {name}, {info.data[name]}")
        return whole

    def remember(self, origins: Mapping[str, str]) -> None:
        """Remember where the given values came from, for display; copies keep it."""
        self._origins = dict(origins)

    def origin_of(self, name: str) -> str | None:
        """Where the setting's value came from; None if it was not given."""
        return self._origins.get(name)
