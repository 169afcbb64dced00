"""What is said of whole models, once they are measured: docs/models.md, a part of README.md, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from prose import listed, wrapped
from tables import NOTHING, Card, shape, significant, table

from fastops.bench import records
from fastops.bench.model import report
from fastops.bench.model.architectures import ARCHITECTURES
from fastops.bench.model.implementations import is_ours
from fastops.bench.model.results import PASSES, START, STEADY
from fastops.bench.peers import OURS
from fastops.bench.records import Record
from fastops.bench.svg import place

HERE = Path(__file__).parent
README, PAGE = Path("README.md"), Path("docs/models.md")
BEGIN = "<!-- Made by `make performance` from here on; tools/performance/models_in_readme.md has the text. -->"
END = "<!-- Made by `make performance` up to here. -->"
MEASURES = (STEADY, START)
LINK = f" [{PAGE.name}]({PAGE.name}) has whole models."  # beside it
STEP, FORWARD = PASSES["step"], PASSES["forward"]
PICTURED = ("llama", "qwen3")

Model = Sequence[Record]  # its training step by each implementation


def cards(root: Path) -> dict[str, Card]:
    """Those on which models were measured, by the names of their files."""
    lines = {file.stem: records.read(file) for file in sorted((root / "benchmarks/results").glob("*.csv"))}
    found = {name: Card(r for r in every if r.measure in MEASURES) for name, every in lines.items()}
    return {name: card for name, card in found.items() if card.records}


def files(root: Path) -> dict[Path, str]:
    """What is generated, by its path in the tree. Before models are measured it is README.md with an empty part."""
    measured = cards(root)
    found = {README: with_part((root / README).read_text(encoding="utf-8"), part(measured))}
    if measured:
        found[PAGE] = page(measured)
    pictures = {picture(name): pictured(card) for name, card in measured.items()}
    return found | {path: report.picture(steps) for path, steps in pictures.items() if steps}


def with_part(text: str, found: str) -> str:
    """The text with this between the two comments."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{README} must have the comments {BEGIN} and {END}")
    return "".join([before, BEGIN, "\n", found, END, after])


def part(measured: Mapping[str, Card]) -> str:
    text = (HERE / "models_in_readme.md").read_text(encoding="utf-8")
    sections = [
        text.format(
            CARD=name.upper(), torches=torches(card), page=PAGE, picture=shown(name, card, README), table=short(card)
        )
        for name, card in measured.items()
    ]
    return "\n" + wrapped("\n\n".join(sections)) + "\n" if sections else ""


def page(measured: Mapping[str, Card]) -> str:
    text = (HERE / "models.md").read_text(encoding="utf-8")
    sections = (
        f"## One {name.upper()}, {torches(card)}{shown(name, card, PAGE)}\n\n{whole(card)}"
        for name, card in measured.items()
    )
    sources = (f"[`{name}.csv`](../benchmarks/results/{name}.csv)" for name in measured)
    return wrapped(text.format(sources=listed(sources), cards="\n\n".join(sections)))


def torches(card: Card) -> str:
    return listed(dict.fromkeys(f"PyTorch {r.torch}" for r in card.records))


def picture(card: str) -> Path:
    return Path(f"docs/models-{card}.svg")


def pictured(card: Card) -> list[Record]:
    return [r for steps in training_steps(card) for r in steps if r.op in PICTURED]


def shown(name: str, card: Card, page: Path) -> str:
    """The picture, behind what comes before it on a page."""
    models = dict.fromkeys(ARCHITECTURES[r.op].model for r in pictured(card))
    if not models:
        return ""
    what = f"Time and peak memory of a training step of {listed(models)}"
    path = picture(name).relative_to(page.parent)
    return f"\n\n![{what}: a panel for each model, a point for each implementation]({path})"


def training_steps(card: Card) -> list[Model]:
    """In the benchmark's order, of each fastops first."""
    found = [same for same in card.together.values() if (same[0].direction, same[0].measure) == (STEP, STEADY)]
    archs = list(ARCHITECTURES)
    found.sort(key=lambda same: (archs.index(same[0].op), same[0].key))
    return [sorted(same, key=lambda r: place(r.implementation)) for same in found]


def whole(card: Card) -> str:
    """All that was measured, a line an implementation."""

    def line(r: Record, steps: Model) -> list[str]:
        start, forward = card.at(r, measure=START), card.at(r, direction=FORWARD)
        return [
            model(r) if r is steps[0] else "",
            r.implementation,
            rate(r),
            over_the_best(r, steps),
            gigabytes(r),
            significant(start.us / 1e6) if start else NOTHING,
            rate(forward) if forward else NOTHING,
        ]

    head = ["", "", "tokens/s", "of the best other", "peak GB", "first step s", "forward tokens/s"]
    return table(head, (line(r, steps) for steps in training_steps(card) for r in steps))


def short(card: Card) -> str:
    """Speed and memory, a line a model."""
    every = training_steps(card)
    names = sorted({r.implementation for steps in every for r in steps}, key=place)

    def line(steps: Model) -> list[str]:
        by = {r.implementation: r for r in steps}
        cells = (f"{rate(r)}, {gigabytes(r)}" if (r := by.get(name)) else NOTHING for name in names)
        return [model(steps[0]), *cells, over_the_best(by[OURS], steps) if OURS in by else NOTHING]

    return table(["", *names, f"{OURS} over the best other"], map(line, every))


def model(r: Record) -> str:
    return f"`{ARCHITECTURES[r.op].model}`, {r.dtype}, {shape(r)}"


def tokens(r: Record) -> float:
    """A millisecond."""
    *_, batch, length = r.sizes
    return batch * length / r.us * 1e3


def rate(r: Record) -> str:
    """In thousands of tokens a second; fastops' stands out."""
    return f"**{significant(tokens(r))}**" if r.implementation == OURS else significant(tokens(r))


def over_the_best(r: Record, steps: Model) -> str:
    """Its tokens a second over the most of those that are not fastops'."""
    others = [tokens(other) for other in steps if not is_ours(other.implementation)]
    return f"{tokens(r) / max(others):.2f}" if others else NOTHING


def gigabytes(r: Record) -> str:
    return significant(r.peak_mb / 1e3) if r.peak_mb else NOTHING
