"""The JSON Schema of the document that --perf-json writes.

python -m stepguard_lab.run_schema > docs/run-document.schema.json
"""

from typing import Any

import msgspec

from stepguard.cli.common import say
from stepguard.core.run_document import SCHEMA, RunDocument
from stepguard.report.document_json import as_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema: fields, types and ranges. Whether fields fit together, only the document's
    reader checks.
    """
    ((top,), components) = msgspec.json.schema_components(
        [RunDocument], ref_template="#/$defs/{name}"
    )
    # Docstrings are for readers of the code. A new docstring must not change the schema.
    bare = {
        name: {key: value for key, value in part.items() if key not in ("title", "description")}
        for name, part in components.items()
    }
    document = bare.pop(top["$ref"].rpartition("/")[2])
    document["properties"]["schema"] = {"const": SCHEMA}
    title = {"$schema": DIALECT, "title": f"stepguard: document of a run, schema {SCHEMA}"}
    return {**title, **document, "$defs": bare}


if __name__ == "__main__":
    say(*as_json(schema()).splitlines())
