"""Metrics of several processes are merged into one exposition: counters are summed, gauges of a process kept apart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from relay.telemetry.merge import merge
from relay.telemetry.metrics import OF_ALL, Metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OF_ONE_PROCESS = ("process_", "python_")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def samples(exposition: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def merged(texts: dict[int, str], silent: int = 0) -> Samples:
    return samples(merge(texts, silent).decode())


@st.composite
def expositions(draw: st.DrawFn) -> str:
    metrics = Metrics("1")
    metrics.messages_received_total.inc(draw(st.integers(0, 1000)))
    for receiver in draw(st.lists(NAMES, max_size=4)):
        metrics.failed_total.labels(receiver, "gone").inc(draw(st.integers(0, 9)))
        metrics.lane_window_records.labels(receiver, "0").set(draw(st.integers(0, 2000)))
        metrics.delivery_duration_seconds.labels(receiver).observe(draw(st.integers(0, 64)) / 4)
    return metrics.render().decode()


@settings(max_examples=30, deadline=None)
@given(exposition=expositions(), count=st.integers(1, 5))
def test_equal_processes_multiply_what_each_has_counted(exposition: str, count: int) -> None:
    one = samples(exposition)
    many = merged(dict.fromkeys(range(count), exposition))
    for (name, labels), value in one.items():
        if name in OF_ALL:
            assert many[name, labels] == value
        elif name.startswith(OF_ONE_PROCESS):
            found = [many[name, tuple(sorted((*labels, ("process", str(index)))))] for index in range(count)]
            assert found == [value] * count
        else:
            assert many[name, labels] == count * value


@settings(max_examples=30, deadline=None)
@given(st.lists(expositions(), min_size=2, max_size=4))
def test_every_process_adds_its_own_and_the_order_does_not_matter(texts: list[str]) -> None:
    found = merged(dict(enumerate(texts)))
    expected: Samples = {}
    for text in texts:
        for key, value in samples(text).items():
            expected[key] = expected.get(key, 0) + value
    ours = {key for key in expected if key[0] not in OF_ALL and not key[0].startswith(OF_ONE_PROCESS)}
    assert {key: found[key] for key in ours} == {key: expected[key] for key in ours}
    other_way = merged(dict(enumerate(reversed(texts))))
    assert {key: other_way[key] for key in ours} == {key: found[key] for key in ours}


@settings(max_examples=30, deadline=None)
@given(exposition=expositions())
def test_families_keep_their_help_and_type_and_are_there_once(exposition: str) -> None:
    def about(text: str) -> list[str]:
        return [line for line in text.split("\n") if line.startswith("#")]

    found = about(merge({0: exposition, 3: exposition}, 0).decode())
    assert found == about(exposition)
    assert len(found) == len(set(found))


def test_of_what_all_share_the_one_furthest_from_nothing_counts() -> None:
    texts = {}
    for index, offset_s in enumerate((0.5, -40.0, 2.0)):
        metrics = Metrics("1")
        metrics.clock_offset_seconds.set(offset_s)
        metrics.state_tags_not_ready.set(64)
        texts[index] = metrics.render().decode()
    found = merged(texts)
    assert found["relay_clock_offset_seconds", ()] == -40.0
    assert found["relay_state_tags_not_ready", ()] == 64


def test_how_many_are_silent_is_told() -> None:
    text = Metrics("1").render().decode()
    assert merged({1: text}, silent=2)["relay_processes_silent", ()] == 2
    assert merged({1: text})["relay_processes_silent", ()] == 0


def test_what_is_no_exposition_is_an_error() -> None:
    with pytest.raises(ValueError, match="convert"):
        merge({0: "no exposition, but {a text\n"}, 0)
