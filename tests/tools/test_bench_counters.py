"""Tests of the benchmark's counters per message: requests, round trips and wake-ups."""

import os
import subprocess

import pytest

from bench.broker_requests import address_of, counts
from bench.counters import Counters, Traffic, of_redis, traffic
from bench.procstat import wakeups

TOLD = """time=1795335403198
kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Fetch,version=4:Count=30
kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Fetch,version=11:Count=12
kafka.network:type=RequestMetrics,name=RequestsPerSec,request=FetchConsumer,version=11:Count=12
kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,version=8:Count=7
Trying to connect to JMX url
"""


def test_requests_of_a_kind_add_up_over_versions_and_none_counts_twice() -> None:
    assert counts(TOLD) == {"Fetch": 42, "Produce": 7}


def test_a_message_s_requests_are_by_kind_without_those_of_the_generator_and_of_brokers() -> None:
    first = Counters({"Fetch": 10, "BrokerHeartbeat": 5}, 0, 0, {})
    last = Counters(
        {"Fetch": 40, "Produce": 60, "OffsetCommit": 5, "Heartbeat": 2, "Metadata": 3, "BrokerHeartbeat": 50}, 0, 0, {}
    )
    found = traffic(first, last, messages=10, produced=20)
    assert found.kafka == {"produce": 4.0, "fetch": 3.0, "commit": 0.5, "other": 0.5}
    assert found.requests == pytest.approx(8.0)


def test_round_trips_are_without_the_one_that_reads_them() -> None:
    before = of_redis({"total_reads_processed": 100, "cmdstat_evalsha": {"calls": 10}})
    after = of_redis({"total_reads_processed": 151, "cmdstat_evalsha": {"calls": 90}, "cmdstat_fcall": {"calls": 20}})
    found = traffic(Counters(None, *before, {}), Counters(None, *after, {}), messages=200, produced=0)
    assert (found.trips, found.scripts, found.messages_a_trip) == (0.25, 0.5, 4.0)


def test_where_nobody_calls_the_state_no_number_of_messages_a_trip_is_told() -> None:
    idle = traffic(Counters(None, 100, 0, {}), Counters(None, 101, 0, {}), messages=200, produced=0)
    assert (idle.trips, idle.messages_a_trip) == (0.0, None)


def test_servers_that_are_not_ours_are_not_counted() -> None:
    theirs = Counters(None, None, None, {"relay": 7})
    assert traffic(theirs, theirs, messages=1, produced=0) == Traffic(wakeups={"relay": 0.0})


def test_a_process_that_came_meanwhile_counts_from_its_start() -> None:
    found = traffic(Counters(None, None, None, {}), Counters(None, None, None, {"relay": 50}), messages=25, produced=0)
    assert found.wakeups == {"relay": 2.0}


def test_who_waits_has_woken_up_once_more() -> None:
    before = wakeups({"we": [os.getpid()]})["we"]
    subprocess.run(["sleep", "0.01"], check=True)
    assert wakeups({"we": [os.getpid()]})["we"] > before


def test_what_is_no_jvm_has_no_address() -> None:
    with pytest.raises(OSError):
        address_of(os.getpid())
