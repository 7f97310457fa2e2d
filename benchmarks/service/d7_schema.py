"""D7: schemathesis on the OpenAPI document of a running service: no 5xx, no schema violation."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figure import Measured
from benchmarks.service.servers import plait_serve

EXAMPLES = 100
"""Requests generated for each operation and phase, at most."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
SECONDS = 1500


def measure(examples: int = EXAMPLES) -> Measured:
    """1 if nothing was found."""
    with plait_serve("tiny") as served:
        report = Path(tempfile.mkdtemp(prefix="plait-bench-")) / "report.txt"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
                *("--header", f"X-API-Key: {served.key}", "--checks", ",".join(CHECKS)),
                *("--max-examples", str(examples), "--generation-database", "none"),
                *("--seed", "1", "--no-color"),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        report.write_text(done.stdout + done.stderr)
    summary = re.findall(r"^\s*(?:❌|✅|⏭).*$", done.stdout, flags=re.MULTILINE)
    clean = done.returncode == 0
    return Measured(
        value=float(clean),
        ok=clean,
        detail={"summary": summary, "report": "" if clean else done.stdout[-3000:]},
    )
