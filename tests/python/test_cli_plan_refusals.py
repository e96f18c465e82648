# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Bad input of ``kvxfer plan``: status 2 and one line that names field, value and expectation."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvxfer.cli import main
from support.plan_cli import assert_refused, plan_of, refusal_of, request, run_plan

HUGE = 10**30
ABSENT = object()

# Fields to replace, and how the line begins.
REFUSED: list[tuple[dict[str, Any], str]] = [
    # Types: true is no integer, neither are 2.0, "2" and null.
    ({"page_size": True}, "page_size: got true, expected an integer in [1, 1048576] or an object"),
    ({"page_size": 2.0}, "page_size: got 2.0, expected an integer"),
    ({"page_size": "2"}, 'page_size: got "2", expected an integer'),
    ({"page_size": 0}, "page_size: got 0, expected an integer in [1, "),
    ({"page_size": HUGE}, f"page_size: got {HUGE}, expected an integer in [1, "),
    ({"page_size": 10**5000}, "page_size: got 1000000"),
    ({"page_size": {"source": 2}}, "page_size.destination: got nothing, expected this field"),
    ({"page_size": {"source": 2, "destination": -2}}, "page_size.destination: got -2, expected"),
    (
        {"page_size": {"source": 2, "destination": 2, "both": 2}},
        "page_size.both: got 2, expected only",
    ),
    ({"source": 1}, "source: got 1, expected an object with ranks"),
    ({"source": {}}, "source.ranks: got nothing, expected this field"),
    ({"source": {"ranks": 0}}, "source.ranks: got 0, expected an integer in [1, "),
    ({"source": {"ranks": True}}, "source.ranks: got true, expected an integer"),
    ({"source": {"ranks": HUGE}}, f"source.ranks: got {HUGE}, expected"),
    (
        {"source": {"ranks": 1, "interleave": 0}},
        "source.interleave: got 0, expected an integer in [1, ",
    ),
    (
        {"source": {"ranks": 1, "interleave": None}},
        "source.interleave: got null, expected an integer",
    ),
    ({"source": {"ranks": 1, "rank": 0}}, "source.rank: got 0, expected only ranks, interleave"),
    (
        {"source": {"ranks": 2, "interleave": 3}},
        "source.interleave: got 3, expected a divisor of the page size 2",
    ),
    (
        {"destination": {"ranks": 2, "interleave": 4}},
        "destination.interleave: got 4, expected a divisor of the page size 2",
    ),
    ({"destination": {"ranks": 2.5}}, "destination.ranks: got 2.5, expected an integer"),
    (
        {"source": {"ranks": 300}, "destination": {"ranks": 300}},
        "destination.ranks: got 300 beside 300 source ranks, expected at most 65536 pairs",
    ),
    # Planes.
    ({"planes": []}, "planes: got [], expected at least one plane"),
    (
        {"planes": {"name": "k", "row_bytes": 4}},
        'planes: got {"name": "k", "row_bytes": 4}, expected a list',
    ),
    ({"planes": [6]}, "planes[0]: got 6, expected an object with name, row_bytes"),
    ({"planes": [{"name": "k"}]}, "planes[0].row_bytes: got nothing, expected this field"),
    (
        {"planes": [{"name": "k", "row_bytes": 0}]},
        "planes[0].row_bytes: got 0, expected an integer in [1, ",
    ),
    ({"planes": [{"name": 7, "row_bytes": 4}]}, "planes[0].name: got 7, expected a string"),
    (
        {"planes": [{"name": "", "row_bytes": 4}]},
        'planes[0].name: got "", expected a string that is not empty',
    ),
    (
        {"planes": [{"name": "k", "row_bytes": 4}, {"name": "k", "row_bytes": 4}]},
        'planes[1].name: got "k", expected another name than planes[0] has',
    ),
    (
        {"planes": [{"name": "k", "row_bytes": 4, "layer": 1}]},
        "planes[0].layer: got 1, expected only name, row_bytes",
    ),
    # Positions.
    (
        {"prefix": 3},
        "prefix: got 3, expected a multiple of 4 (destination page size times destination ranks)",
    ),
    ({"prefix": -4}, "prefix: got -4, expected an integer in [0, "),
    ({"prefix": False}, "prefix: got false, expected an integer"),
    ({"tokens": 3}, "tokens: got 3, expected at least the prefix 4"),
    ({"tokens": None}, "tokens: got null, expected an integer"),
    ({"tokens": 2**63}, f"tokens: got {2**63}, expected an integer in [0, "),
    (
        {"tokens": 2**30},
        f"tokens: got {2**30}, expected at most 16777216 tokens after the prefix 4",
    ),
    # Pages.
    (
        {"source_pages": [5, 2, 6]},
        "source_pages: got 3 pages, expected at least 7 for the 13 rows of rank 0 in positions "
        "[0, 13) (page size 2)",
    ),
    ({"source_pages": []}, "source_pages: got 0 pages, expected at least 7"),
    (
        {"source_pages": [5, 2, 6, 0, 9, 8, 8]},
        "source_pages[6]: got 8, expected each page once (source_pages[5] has it)",
    ),
    ({"source_pages": [5, 2, 6, 0, 9, 8, 7, 7]}, "source_pages[7]: got 7, expected each page once"),
    (
        {"source_pages": [5, 2, 6, 0, 9, 8, -7]},
        "source_pages[6]: got -7, expected an integer in [0, ",
    ),
    (
        {"source_pages": [5, 2, 6, 0, 9, 8, 7, -1]},
        "source_pages[7]: got -1, expected an integer in [0, ",
    ),
    (
        {"source_pages": [5, 2, 6, 0, 9, 8, 2**63]},
        f"source_pages[6]: got {2**63}, expected an integer",
    ),
    ({"source_pages": [5, 2, 6, 0, 9, 8, 7.0]}, "source_pages[6]: got 7.0, expected an integer"),
    ({"source_pages": [5, 2, 6, 0, 9, 8, True]}, "source_pages[6]: got true, expected an integer"),
    (
        {"source_pages": [[5, 2, 6, 0, 9, 8, 7]]},
        "source_pages[0]: got [5, 2, 6, 0, ...], expected an integer",
    ),
    (
        {"source_pages": [5, 2, 6, 0, 9, 8, 2**39]},
        f"source_pages[6]: got {2**39}, expected an integer in [0, {2**39 - 1}]",
    ),
    (
        {"destination_pages": [7, 3, 2**38]},
        f"destination_pages[2]: got {2**38}, expected an integer in [0, {2**38 - 1}]",
    ),
    ({"source_pages": 5}, "source_pages: got 5, expected a list of page ids or an object"),
    (
        {"destination_pages": [7, 3]},
        "destination_pages: got 2 pages, expected at least 3 for the 5 rows of rank 0 in positions "
        "[4, 13) (page size 2)",
    ),
    (
        {"destination_pages": {"0": [7, 3, 1]}},
        "destination_pages.1: got nothing, expected this field",
    ),
    (
        {"destination_pages": {"0": [7, 3, 1], "1": [1, 2], "2": []}},
        "destination_pages.2: got [], expected only 0, 1",
    ),
    ({"destination_pages": {"0": [7, 3, 1], "01": [1, 2]}}, "destination_pages.1: got nothing"),
    (
        {"destination_pages": {"0": [7, 3, 1], "1": [4]}},
        "destination_pages: got 1 pages, expected at least 2 for the 4 rows of rank 1",
    ),
    (
        {"destination_pages": {"0": [7, 3, 1], "1": [4, 4]}},
        "destination_pages.1[1]: got 4, expected each page once (destination_pages.1[0] has it)",
    ),
    # Capacity.
    ({"max_tokens": 1}, "max_tokens: got 1, expected >= 2 (source page size times source ranks)"),
    ({"max_tokens": 0}, "max_tokens: got 0, expected an integer in [1, "),
    ({"max_tokens": None}, "max_tokens: got null, expected an integer"),
    ({"max_tokens": HUGE}, f"max_tokens: got {HUGE}, expected an integer in [1, "),
    # Sends.
    ({"sends": []}, "sends: got [], expected at least one send"),
    ({"sends": {}}, "sends: got {}, expected a list of [begin, end, is_last]"),
    ({"sends": [4, 13, True]}, "sends[0]: got 4, expected a list of begin, end and is_last"),
    ({"sends": [[4, 13]]}, "sends[0]: got [4, 13], expected [begin, end, is_last]"),
    ({"sends": [[4, 13, 1]]}, "sends[0][2]: got 1, expected true or false"),
    ({"sends": [[4, True, True]]}, "sends[0][1]: got true, expected an integer in [4, 13]"),
    ({"sends": [[0, 13, True]]}, "sends[0][0]: got 0, expected 4 (the prefix)"),
    (
        {"sends": [[4, 12, True]]},
        "sends[0][1]: got 12, expected 13, since the last send ends at tokens",
    ),
    ({"sends": [[4, 14, True]]}, "sends[0][1]: got 14, expected an integer in [4, 13]"),
    (
        {"sends": [[4, 3, False], [4, 13, True]]},
        "sends[0][1]: got 3, expected an integer in [4, 13]",
    ),
    (
        {"sends": [[4, 9, False], [9, 13, True]]},
        "sends[1][0]: got 9, expected 8 (where the send before it ends when lowered)",
    ),
    ({"sends": [[8, 13, True], [4, 8, False]]}, "sends[0][0]: got 8, expected 4"),
    (
        {"sends": [[4, 13, True], [12, 13, True]]},
        "sends[0][2]: got true, expected false, since another send follows",
    ),
    # Fields.
    ({"page_sise": 2}, "page_sise: got 2, expected only page_size, source, destination"),
    ({"two\nlines": 2}, '"two\\nlines": got 2, expected only'),
    ({"tokens": ABSENT}, "tokens: got nothing, expected this field"),
    ({"prefix": ABSENT}, "prefix: got nothing, expected this field"),
]


@pytest.mark.parametrize(("fields", "expected"), REFUSED, ids=[line for _, line in REFUSED])
def test_a_bad_field_is_named(fields: dict[str, Any], expected: str) -> None:
    document = {key: value for key, value in request(**fields).items() if value is not ABSENT}
    assert refusal_of(_json(document)).startswith(expected)


def _json(document: object) -> str:
    """JSON of a document with integers of any length."""
    if isinstance(document, dict) and document.get("page_size") == 10**5000:
        return json.dumps({**document, "page_size": 0}).replace(": 0,", ": 1" + "0" * 5000 + ",", 1)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "input: got the end at line 1 column 1, expected JSON (Expecting value)"),
        ("{", "input: got the end at line 1 column 2, expected JSON"),
        ("null", "input: got null, expected an object with page_size"),
        ("[1, 2]", "input: got [1, 2], expected an object with page_size"),
        ("{} {}", 'input: got "{}" at line 1 column 4, expected JSON (Extra data)'),
        ("{'a': 1}", "input: got"),
        ("[" * 100_000, "input: got values nested too deeply, expected one JSON object"),
        (b"\xff{}", "standard input: got byte 0xff at offset 0, expected UTF-8 text"),
        ("\ufeff{}", "input: got"),
    ],
)
def test_what_is_not_json_is_refused(text: str | bytes, expected: str) -> None:
    assert refusal_of(text).startswith(expected)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e3", "13.0"])
def test_numbers_that_are_not_integers(number: str) -> None:
    text = json.dumps(request()).replace('"tokens": 13', f'"tokens": {number}')
    assert refusal_of(text).startswith(f"tokens: got {number}, expected an integer")


def test_a_field_that_stands_twice() -> None:
    text = json.dumps(request())
    line = refusal_of(text.replace('"tokens": 13', '"tokens": 13, "tokens": 13'))
    assert line == "tokens: got the field twice, expected it once"
    line = refusal_of(text.replace('"ranks": 2', '"ranks": 1, "ranks": 2'))
    assert line == "destination.ranks: got the field twice, expected it once"


def test_shardings_without_a_common_grid() -> None:
    given = request(
        page_size={"source": 1_048_573, "destination": 1_048_576},
        source={"ranks": 2, "interleave": 1_048_573},
        destination={"ranks": 3},
        prefix=0,
        source_pages=[0],
        destination_pages=[0],
    )
    assert refusal_of(given).startswith(
        "source and destination: got interleaves 1048573 and 1 (expected shardings"
    )


def test_a_plan_that_would_not_fit_memory_is_refused() -> None:
    given = request(
        page_size=1,
        source={"ranks": 256},
        destination={"ranks": 255},
        prefix=0,
        tokens=1 << 18,
        source_pages=list(range(1 << 10)),
        destination_pages=list(range(1 << 11)),
        max_tokens=256,
    )
    assert refusal_of(given) == (
        "max_tokens: got 1024 segments of 65280 pairs of ranks, "
        "expected at most 1048576 entries in all"
    )


def test_longer_page_lists_are_fine() -> None:
    longer = request(source_pages=[5, 2, 6, 0, 9, 8, 7, 11, 12], destination_pages=[7, 3, 1, 9])
    assert plan_of(longer) == plan_of(request())


def test_a_rank_without_rows_needs_no_pages() -> None:
    given = request(tokens=5, destination_pages={"0": [7], "1": []})
    pairs = plan_of(given)["segments"][0]["pairs"]
    assert [pair["destination_rows"] for pair in pairs] == [[14], []]


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request()))
    assert main(["plan", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == plan_of(request())


@pytest.mark.parametrize("name", ["absent.json", "", "a\nb", "a\0b"])
def test_a_file_that_cannot_be_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{tmp_path}/{name}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("kvxfer plan: FILE: got ")
    assert err.endswith("expected a readable file\n")


# --- anything at all ------------------------------------------------------------------------------

ODD_INTEGERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 13, 2**20, 2**31, 2**40, 2**63, 2**64, HUGE])
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | ODD_INTEGERS
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(sorted(request())),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["0", "1", "ranks"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
ANYTHING_GOES = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def assert_planned_or_refused(document: bytes | str) -> None:
    outcome = run_plan(document)
    if outcome.status == 0:
        assert outcome.err == ""
        assert set(json.loads(outcome.out)) == {"capacity", "segments"}
    else:
        assert_refused(outcome)


@ANYTHING_GOES
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(document: bytes) -> None:
    assert_refused(run_plan(document))


@ANYTHING_GOES
@given(ANY_JSON)
def test_any_json_is_refused(document: object) -> None:
    assert_refused(run_plan(json.dumps(document)))


@ANYTHING_GOES
@given(st.sampled_from([*sorted(request()), "max_tokens", "sends"]), ANY_JSON)
def test_any_value_of_any_field(field: str, value: object) -> None:
    assert_planned_or_refused(json.dumps(request(**{field: value})))


@ANYTHING_GOES
@given(st.data())
def test_any_value_anywhere_inside(data: st.DataObject) -> None:
    document = request(max_tokens=4, sends=[[4, 9, False], [8, 13, True]])
    node: Any = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans())):
            break
        node = node[key]
    node[key] = data.draw(ODD_INTEGERS | ANY_JSON)
    assert_planned_or_refused(json.dumps(document))


@ANYTHING_GOES
@given(st.data())
def test_any_damage_to_the_text(data: st.DataObject) -> None:
    text = json.dumps(request())
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(begin + 10, len(text))))
    patch = data.draw(st.text('{}[]",:0123456789.eE-\n\\ tfn', max_size=5))
    assert_planned_or_refused(text[:begin] + patch + text[end:])
