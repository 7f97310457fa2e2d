"""The API's document: whole, and open about what each route may answer."""

import json
from typing import Any

from fake_app import make_app
from fake_house import FakeHouse


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for each in value.values() for ref in references(each)]
    return [ref for each in value for ref in references(each)] if isinstance(value, list) else []


def test_every_reference_in_the_document_leads_somewhere(fake: FakeHouse) -> None:
    document = json.loads(json.dumps(make_app(fake).app.openapi()))
    found = references(document)
    assert found
    for reference in found:
        assert reference.startswith("#/components/schemas/"), reference
        assert reference.rpartition("/")[2] in document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            if method == "post" and not path.endswith("/publish"):
                assert operation["requestBody"]["content"], path
