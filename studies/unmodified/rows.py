"""Puts the rows of measure.py together: one small JSON file, and the page's table.

python studies/unmodified/rows.py DIR/*.json > studies/unmodified/rows.json
python studies/unmodified/rows.py --table studies/unmodified/rows.json
"""

import json
import re
import sys
from pathlib import Path

KEPT = ("name", "repository", "commit", "command", "in_the_way", "changed_files_of_theirs")


def small(row: dict) -> dict:
    """Return a row without the texts of the runs."""
    kept = {key: row[key] for key in KEPT if key in row}
    text = row.get("init", {}).get("text", "")
    if step := re.search(r"^\S+\[\S+\] +([\d.,]+) ", text, re.MULTILINE):
        kept["step_ms"] = float(step.group(1).replace(",", ""))
    kept["green_s"] = row["init"]["s"] if row.get("init", {}).get("status") == 0 else None
    for key in ("plants", "refactors"):
        kept[key] = [
            {name: value for name, value in run.items() if name != "text"}
            for run in row.get(key, ())
        ]
    return kept


def table(rows: list[dict]) -> str:
    """Return the page's table."""
    lines = [
        "| script | step | first green | planted, red | first line names it | refactors `same` |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        plants, refactors = row["plants"], row["refactors"]
        green = f"{row['green_s']:.0f} s" if row["green_s"] else "no"
        step = f"{row['step_ms']:.0f} ms" if "step_ms" in row else ""
        same = 2 if refactors and refactors[0]["right"] else sum(r["right"] for r in refactors[1:])
        lines.append(
            f"| {row['repository']} `{row['name']}` | {step} | {green} | "
            f"{sum(p['right'] for p in plants)} of {len(plants)} | "
            f"{sum(p['names_the_line'] for p in plants)} of {len(plants)} | {same} of 2 |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] == "--table":
        sys.stdout.write(table(json.loads(Path(sys.argv[2]).read_text())) + "\n")
    else:
        read = [small(json.loads(Path(path).read_text())) for path in sys.argv[1:]]
        sys.stdout.write(json.dumps(read, indent=1) + "\n")
