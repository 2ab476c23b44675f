"""The report's files."""

import json
from dataclasses import asdict
from pathlib import Path

from bench.chart import chart
from bench.markdown import markdown
from bench.results import Report


def write(report: Report, directory: Path) -> list[Path]:
    """`report.json` with everything, `report.md` and `report.svg`; what was there before is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.json": json.dumps(asdict(report), indent=1, allow_nan=False) + "\n",
        "report.md": markdown(report),
        "report.svg": chart(report),
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in texts]
