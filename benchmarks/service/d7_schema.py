"""D7: schemathesis on the OpenAPI document of a running service: no 5xx, no schema violation.

As the test of the same name does, with more requests for each operation.
"""

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from benchmarks.figure import Measured
from benchmarks.service.servers import Served, plait_serve

EXAMPLES = 100
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def measure(examples: int = EXAMPLES) -> Measured:
    """The share of operations that keep to the document."""
    with plait_serve("tiny") as served:
        wrong, n_operations, n_cases = tried(served, examples)
    return Measured(
        value=1 - len(wrong) / n_operations,
        ok=not wrong,
        detail={"operations": n_operations, "cases": n_cases, "wrong": wrong},
    )


def tried(served: Served, examples: int) -> tuple[dict[str, str], int, int]:
    """What was wrong, by operation; how many operations and requests there were."""
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    wrong: dict[str, str] = {}
    n_operations = n_cases = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        n_operations += 1

        @seed(n_operations)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def holds(case: Any) -> None:
            nonlocal n_cases
            n_cases += 1
            case.call_and_validate(headers={"X-API-Key": served.key}, checks=CHECKS)

        try:
            holds()
        except Exception as error:  # of any kind: it is what the figure reports
            wrong[operation.label] = str(error)[:500]
    return wrong, n_operations, n_cases
