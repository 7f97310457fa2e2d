"""Schema: schemathesis on our OpenAPI document: no answer of 5xx, none that the document does not
allow, whatever is sent (figure D7 runs the same for longer)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import schemathesis.openapi
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import Served, served

schemathesis.openapi.media_type("application/x-protobuf", st.binary(max_size=200))

EXAMPLES = 6
"""For each operation; a minute in all."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, byte_model: Path) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("schema"), byte_model) as running:
        yield running


def test_every_answer_is_as_the_document_says(server: Served) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    headers = {"X-API-Key": server.key}
    n, wrong = 0, []
    for found in schema.get_all_operations():
        operation = found.ok()

        @seed(n)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def holds(case: Any) -> None:
            case.call_and_validate(headers=headers, checks=CHECKS)

        n += 1
        try:
            holds()
        except Exception as error:
            wrong.append(f"{operation.label}: {error}")
    assert n > 40
    assert not wrong, "\n\n".join(wrong)
