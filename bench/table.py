"""`python -m bench.table`: the README's table, from what `make bench` kept in `bench/results`.

What has a target; the rest is in the results.
"""

import json
from pathlib import Path

from bench.harness import RESULTS, figure

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench: make bench && python -m bench.table -->\n", "<!-- /bench -->\n"


def table() -> str:
    """The results as Markdown; a missed target is bold."""
    lines = ["| question | measured | target |", "| --- | --- | --- |"]
    for path in sorted(RESULTS.glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            if row["target"] is None:
                continue
            measured = f"{figure(row['measured'])} {row['unit']}"
            shown = f"**{measured}**" if row["ok"] is False else measured
            target = "" if row["target"] is None else figure(row["target"])
            lines.append(f"| {row['what']} | {shown} | {target} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """``text`` with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
