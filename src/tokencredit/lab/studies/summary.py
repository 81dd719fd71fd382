"""The stored results of a study: raw files of runs -> the tables that the docs quote, as one small summary.json.

Commands: `make`, `show`, `speed`.

The raw files are not in the working tree. `git archive COMMIT experiments/NAME | tar -x -C SCRATCH` takes them from history.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.lab.compare.document import KIND, concluded
from tokencredit.lab.compare.table import comparison_tables
from tokencredit.lab.speed.run import tables
from tokencredit.lab.speed.workload import Shown
from tokencredit.lab.studies import credit, markdown, microscope, paper_claims, parser_of, recipe_study, run_command, training

LAST_RAW_COMMIT = "5410575a07b72c747781ed8696687d13e078a5a4"
"""The last commit whose tree holds the raw files."""
LIMIT = 50 * 1024
"""Bytes of a summary."""


class Table(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]


def tables_in(text: str) -> Iterator[Table]:
    """The Markdown tables of a text; a table's title is the last line of text above it."""
    title, block = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append(
                [cell.strip().replace("\\|", "|") for cell in line.replace("\\|", "\0").strip("| ").replace("\0", "\\|").split(" | ")]
            )
            continue
        if block:
            head, rows = block[0], [row for row in block[1:] if set("".join(row)) - set("-:| ")]
            yield Table(title, head, [[*row, *[""] * (len(head) - len(row))] for row in rows])
            block = []
        if line.strip():
            title = line.strip().strip("#*").strip()


def captured(print_tables: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print_tables()
    return text.getvalue()


def compared(name: str, document: dict[str, Any], references: Sequence[str]) -> Iterator[Table]:
    """What `tokencredit compare` prints of a comparison, once per reference."""
    for reference in dict.fromkeys((document["design"]["reference"], *references)):
        stored = concluded({**document, "design": {**document["design"], "reference": reference}})
        own = reference == document["design"]["reference"]
        for title, head, rows in comparison_tables(stored):
            # Learning rates of a study with standings are in its table of tuned recipes.
            repeated = document.get("standings") and not title.endswith("size seen") and "standard deviation" not in title
            if not repeated and (own or "paired differences" in title):
                yield Table(f"{name}: {title}", list(head), [list(row) for row in rows])


def references_of(name: str, document: dict[str, Any]) -> list[str]:
    """References that the docs quote besides a comparison's own: the other form of right-once, and dapo at its other rate."""
    by_length = [one for one in document["design"]["recipes"] if "aggregation" in one]
    at_other_rate = [one for one in document["design"]["recipes"] if one.startswith("dapo:optimizer.learning_rate")]
    return [*by_length, *at_other_rate] if name != "guess" else []


def comparisons(folder: Path) -> Iterator[Table]:
    """Tables of several comparisons together, and of each by itself."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    stored = {name: one for name, one in found.items() if one.get("kind") == KIND}
    yield Table("final accuracy and cost", *_plain(recipe_study.goal(list(stored.items()))))
    for name, one in stored.items():
        if one.get("standings"):
            yield Table(f"{name}: tuned", *_plain(recipe_study.tuned(one)))
    for name, one in stored.items():
        if "tuning" not in name:
            yield from compared(name, one, references_of(name, one))


def recipe_studies(folder: Path) -> Iterator[Table]:
    """As `comparisons`, with the tables of finalists in place of the differences on each base, which these hold."""
    stored = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    for names in (("comparison", "fresh-shift", "fresh-sharpen"), ("retuned-shift",)):
        yield Table(f"finalists: {', '.join(names)}", *_plain(recipe_study.finals([(name, stored[name]) for name in names])))
    for table in comparisons(folder):
        if ": paired differences" not in table.title.partition(": ")[2]:
            yield table


def _plain(table: recipe_study.Table) -> tuple[list[str], list[list[str]]]:
    head, rows = table
    return list(head), [list(row) for row in rows]


def grid(folder: Path) -> Iterator[Table]:
    """The table over seeds, and one line per run."""
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    yield from (table._replace(title="mean and standard deviation over seeds") for table in tables_in(training.grid_table(rows)))
    head = ["recipe", "flags", "seed", "commit", "before", "after", "greedy", "pass@k", "curve area", "to 80 %", "entropy", "seconds"]
    lines = [
        [
            row["recipe"], row["flags"], str(row["seed"]), str(row["commit"])[:8], f"{100 * row['before']['sampled']:.2f}",
            *(f"{100 * row['after'][name]:.2f}" for name in ("sampled", "greedy", "pass_at_k")), f"{100 * training.curve_area(row):.2f}",
            str(row["rollouts_to_threshold"]), f"{row['final_entropy']:.4f}", f"{row['seconds']:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    yield Table("runs", head, lines)


def credit_parts(*parts: str) -> Callable[[Path], Iterator[Table]]:
    """Tables of the credit benchmark: a column per checkpoint."""

    def extract(folder: Path) -> Iterator[Table]:
        checkpoints: dict[str, Any] = {}
        for path in sorted(folder.glob("*.json")):
            name = "smollm2" if path.stem.startswith("smollm2") else path.stem
            one = json.loads(path.read_text(encoding="utf-8"))["checkpoints"][0]
            checkpoints[name] = credit.with_more(checkpoints[name], one) if name in checkpoints else one
        for part in parts:
            for table in tables_in(credit.PARTS[part](checkpoints)):
                yield table._replace(title=f"{part}: {table.title}" if table.title else part)

    return extract


def claims(folder: Path) -> Iterator[Table]:
    documents = [(study, folder / f"{name}.json") for name, study in paper_claims.STUDIES.items()]
    stored = [(study, json.loads(file.read_text(encoding="utf-8"))) for study, file in documents]
    for study, document in stored:
        for table in tables_in(paper_claims.study_report(study, document)):
            yield table._replace(title=f"{study.name}: {table.title}")
    for table in tables_in(paper_claims.overview(stored)):
        # The numbers are those of the claim's own table.
        yield Table(table.title, table.head[:3], [row[:3] for row in table.rows])


def printed(print_tables: Callable[[Any], object]) -> Callable[[Path], Iterator[Table]]:
    """What a study prints of its results.json."""
    return lambda folder: tables_in(captured(lambda: print_tables(json.loads((folder / "results.json").read_text(encoding="utf-8")))))


EXTRACT: Mapping[str, Callable[[Path], Iterator[Table]]] = {
    "2026-11-15-every-recipe": grid,
    "2026-11-15-rate-1e-3": grid,
    "2026-11-15-six-recipes": grid,
    "2026-11-16-cancellation-claims": printed(microscope.print_claim_tables),
    "2026-11-16-credit-bench": credit_parts("truth", "gradients", "entropy", "uniform", "agreement", "classes", "oracle"),
    "2026-11-16-failure-anatomy": credit_parts("truth", "anatomy", "examples"),
    "2026-11-16-gpu-speed": lambda folder: tables_in(speed_markdown(json.loads((folder / "speed.json").read_text(encoding="utf-8")))),
    "2026-11-16-paper-claims": claims,
    "2026-11-16-prompt-spread": printed(lambda record: print(credit.spread_table(record))),
    "2026-11-16-real-model": printed(microscope.print_real_model),
    "2026-11-17-fewer-rollouts": comparisons,
    "2026-11-17-language-model-recipes": comparisons,
    "2026-11-17-lengths": comparisons,
    "2026-11-17-multi-turn": comparisons,
    "2026-11-17-recipe-study": recipe_studies,
    "2026-11-17-right-once": comparisons,
}
"""Folder -> the tables of its raw files."""


def archive_hash(folder: Path) -> tuple[str, list[str]]:
    """SHA-256 of the sorted lines of `sha256sum experiments/NAME/*.json`, and the names of these files."""
    files = sorted(folder.glob("*.json"))
    lines = sorted(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  experiments/{folder.name}/{file.name}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest(), [file.name for file in files]


def summarize(folder: Path) -> dict[str, Any]:
    sha256, files = archive_hash(folder)
    found = [table._asdict() for table in EXTRACT[folder.name](folder)]
    return {"study": folder.name, "raw": {"commit": LAST_RAW_COMMIT, "sha256": sha256, "files": files}, "tables": found}


def make() -> None:
    """Extracts the tables of a study from its raw files.

    git archive 5410575a experiments/2026-11-17-lengths | tar -x -C scratch
    python -m tokencredit.lab.studies.summary make scratch/experiments/2026-11-17-lengths --out experiments/2026-11-17-lengths
    """
    parser = parser_of(make)
    parser.add_argument("raw", type=Path, help="folder with the raw files of one study")
    parser.add_argument("--out", type=Path, required=True, help="folder of summary.json")
    options = parser.parse_args()
    if options.raw.name not in EXTRACT:
        raise ConfigError(f"{options.raw.name!r} is no study with raw files; it must be among {', '.join(EXTRACT)}")
    stored = summarize(options.raw)
    text = json.dumps(stored, ensure_ascii=False, indent=0, separators=(",", ":")).replace('",\n"', '","') + "\n"
    if (size := len(text.encode())) > LIMIT:
        raise ConfigError(f"the summary of {options.raw.name} has {size} bytes; at most {LIMIT} are kept in the tree")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "summary.json").write_text(text, encoding="utf-8")
    print(f"{options.raw.name}: {len(stored['tables'])} tables, {size} bytes, raw sha256 {stored['raw']['sha256']}")


def show() -> None:
    """Prints the tables of a summary as Markdown.

    python -m tokencredit.lab.studies.summary show experiments/2026-11-17-lengths/summary.json
    """
    parser = parser_of(show)
    parser.add_argument("summary", type=Path)
    for table in json.loads(parser.parse_args().summary.read_text(encoding="utf-8"))["tables"]:
        print(f"### {table['title']}\n\n{markdown(table['head'], table['rows'])}\n")


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _speed_table(shown: Shown) -> Iterator[str]:
    yield f"### {shown.title}\n"
    yield _cells(shown.columns)
    yield "| --- |" + " ---: |" * (len(shown.columns) - 1)
    yield from map(_cells, shown.rows)
    yield ""
    if shown.notes:
        yield from (f"* {note}" for note in shown.notes)
        yield ""


def _measured_on(result: dict[str, Any]) -> Iterator[str]:
    """Machine, versions, commit and limits."""
    machine, environment = result["machine"], result["environment"]
    versions = {name: environment["packages"].get(name) for name in ("torch", "transformers")} | machine["beside"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    commit = str(environment.get("commit") or "unknown")[:10] + (" with changes" if environment.get("diff") else "")
    yield f"{machine.get('name', machine['device'])}, {result['date'][:10]}, {packages}; commit {commit}; {result['repeats']} repeats."
    if limits := result["ceilings"]:
        yield (
            f"Measured at best in the same run: {limits['flops_per_second'] / 1e12:,.0f} TFLOP/s of {limits['dtype']} matrix products, "
            f"{limits['bytes_per_second'] / 1e9:,.0f} GB/s of copying."
        )
    yield ""


def speed_markdown(result: dict[str, Any], parts: Sequence[str] | None = None) -> str:
    """Tables of `tokencredit bench speed --json`, part by part, with the machine that they were measured on."""
    lines = list(_measured_on(result))
    for part, found in result["parts"].items():
        if parts is None or part in parts:
            lines += [line for shown in tables(part, found) for line in _speed_table(shown)]
    lines += [f"Part {part} failed: {why.splitlines()[0]}\n" for part, why in result["failed"].items() if parts is None or part in parts]
    return "\n".join(lines)


def speed() -> None:
    """Tables of `tokencredit bench speed --json FILE.json` as Markdown, part by part, with the machine that they were measured on.

    python -m tokencredit.lab.studies.summary speed FILE.json
    python -m tokencredit.lab.studies.summary speed FILE.json --parts update,delta
    """
    parser = parser_of(speed)
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", help="part names with commas between them; default: all that were measured")
    options = parser.parse_args()
    print(speed_markdown(json.loads(options.file.read_text()), options.parts and [part.strip() for part in options.parts.split(",")]))


if __name__ == "__main__":
    run_command({"make": make, "show": show, "speed": speed})
