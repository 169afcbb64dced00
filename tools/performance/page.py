"""The text of docs/performance.md, and its pictures, from the measurements; beside them what ``whole_models`` makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import whole_models
from prose import listed, wrapped
from tables import NOTHING, Card, named, shape, significant, span, table

from fastops.bench import plane, plot, records, timing
from fastops.bench.peers import OURS
from fastops.bench.peers import PRODUCTS as PRODUCTS_ALONE
from fastops.bench.svg import place

HERE = Path(__file__).parent
GPU, LOSSES_GPU, CPU = "h200", "h100", "epyc"
GPU_LEVEL = "generic"  # the group of kernels that this card chooses; lines of another are for comparisons
NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
ELEMENTWISE = ("square", "relu", "sigmoid", "axpby")
PRODUCTS = ("linear", "lltm")
PICTURED = ("layer_norm", "rms_norm")
DIRECTIONS = ("forward", "backward")
DTYPES = ("f32", "bf16", "f16")
HALF = "bf16"  # what the GPU's tables are of
PEERS = ("eager", "compile", "liger", "quack")
ONE_SIZE = dict.fromkeys((*NORMS, *ELEMENTWISE, "linear"), "8192x4096") | {"lltm": "4096x1024"}
COLUMNS = tuple((direction, dtype) for direction in DIRECTIONS for dtype in DTYPES)
# Between the products of a transformer's block.
BLOCKS = (("swiglu", "8192x14336"), ("rope", "16384x32x128"), ("qk_norm_rope", "16384x32x128"))
# Of the other operators, a line each: shape and direction.
ROWS = (
    *((op, "8192x4096", direction) for op in ("softmax",) for direction in DIRECTIONS),
    *(
        ("cross_entropy", size, way)
        for size in ("16384x32000", "8192x128256")
        for way in ("forward", "forward+backward")
    ),
    *((op, size, "forward+backward") for op, size in BLOCKS),
)
HEAD = "linear_cross_entropy"
HEAD_PICTURE = f"{HEAD}.svg"
TIES = 0.01  # of a time; less is noise


def card(root: Path, name: str) -> Card:
    found = records.read(root / f"benchmarks/results/{name}.csv")
    of_ops = (r for r in found if r.measure not in whole_models.MEASURES)
    return Card(r for r in of_ops if name != GPU or r.level == GPU_LEVEL)


def files(root: Path) -> dict[Path, str]:
    """What is generated, by its path in the tree."""
    gpu, losses, cpu = card(root, GPU), card(root, LOSSES_GPU), card(root, CPU)
    pictured = [r for r in gpu.records if r.op in PICTURED and r.dtype == HALF and r.measure == "call"]
    found = whole_models.files(root)
    link = whole_models.LINK if whole_models.PAGE in found else ""
    found |= {Path("docs/performance.md"): text(gpu, losses, cpu, link), Path(f"docs/{GPU}.svg"): plot.drawn(pictured)}
    if steps := steps_of_head(losses):
        found[Path(f"docs/{HEAD_PICTURE}")] = plane.drawn(steps)
    return found


def text(gpu: Card, losses: Card, cpu: Card, link: str) -> str:
    """The page, with this behind where it says what other pages have."""
    cpu_sizes = dict.fromkeys(shape(r) for r in cpu.chosen() if r.op in NORMS)
    torches = (f"{r.torch} on the {name}" for name, one in (("GPU", gpu), ("CPU", cpu)) for r in one.records)
    page = (HERE / "page.md").read_text(encoding="utf-8")
    return wrapped(
        page.format(
            card=GPU,
            CARD=GPU.upper(),
            cpu=CPU,
            CPU=f"AMD {CPU.upper()}",
            pictured=listed(PICTURED),
            one_size=ONE_SIZE["layer_norm"].replace("x", "×"),
            copy=significant(copy_bandwidth(gpu, "square") / 1e12, 2),
            sizes=len(gpu.chosen(op="layer_norm", direction="forward", dtype=HALF)),
            cpu_sizes=listed(cpu_sizes),
            products=listed(f"`{op}`" for op in PRODUCTS),
            torches=listed(dict.fromkeys(torches)),
            rounds=timing.ROUNDS,
            table_one=table_one(gpu),
            losses_card=LOSSES_GPU,
            LOSSES_CARD=LOSSES_GPU.upper(),
            table_losses=table_losses(losses),
            head=head_section(losses),
            link=link,
            table_lengths=table_lengths(gpu),
            table_peers=table_peers(gpu),
            table_cpu=table_cpu(cpu),
            losses_copy=significant(copy_bandwidth(losses, "softmax") / 1e12, 2),
            limits=limits(gpu, losses, cpu),
        )
    )


def copy_bandwidth(gpu: Card, op: str) -> float:
    """In bytes a second, from an op that reads its input once and writes its output once, as a copy does."""
    r = gpu.one(op=op, direction="forward", dtype=HALF, shape="8192x4096")
    rows, columns = r.sizes
    return 2 * rows * columns * 2 / (r.us * 1e-6) / (r.share_of_copy or 1)


def table_one(gpu: Card) -> str:
    head = ["", "µs", "share", *PEERS, "memory, MB", "eager's, MB"]
    return table(head, (line_of_one(gpu, op, direction) for op in ONE_SIZE for direction in DIRECTIONS))


def line_of_one(gpu: Card, op: str, direction: str) -> list[str]:
    ours = gpu.one(op=op, direction=direction, dtype=HALF, shape=ONE_SIZE[op])
    peers = [gpu.get(ours, name) for name in PEERS]
    where = "" if ours.shape == ONE_SIZE["layer_norm"] else f" {shape(ours)}"
    share = NOTHING if op in PRODUCTS else f"{ours.share_of_copy:.2f}"
    eager = gpu.get(ours, "eager")
    return [
        f"`{op}`{where} {direction}",
        f"**{significant(ours.us)}**",
        share,
        *(significant(peer.us) if peer else NOTHING for peer in peers),
        *(significant(r.peak_mb) if r and r.peak_mb else NOTHING for r in (ours, eager)),
    ]


def table_losses(gpu: Card) -> str:
    names = ("eager", "compile", "liger")
    head = ["", "µs", "share", *names, "memory, MB", "eager's, MB"]

    def line(op: str, size: str, direction: str) -> list[str]:
        ours = gpu.one(op=op, direction=direction, dtype=HALF, shape=size)
        peers = [gpu.get(ours, name) for name in names]
        return [
            f"`{op}` {shape(ours)} {direction}",
            f"**{significant(ours.us)}**",
            f"{ours.share_of_copy:.2f}",
            *(significant(peer.us) if peer else NOTHING for peer in peers),
            *(significant(r.peak_mb) if r and r.peak_mb else NOTHING for r in (ours, peers[0])),
        ]

    return table(head, (line(*of) for of in ROWS))


def steps_of_head(gpu: Card) -> list[records.Record]:
    """A training step's part of a language model's head."""
    key = HEAD, "forward+backward", HALF, "call"
    return [r for r in gpu.records if (r.op, r.direction, r.dtype, r.measure) == key]


def head_section(gpu: Card) -> str:
    """Once it is measured."""
    steps = steps_of_head(gpu)
    if not steps:
        return ""
    section = (HERE / "head.md").read_text(encoding="utf-8")
    torches = listed(dict.fromkeys(f"PyTorch {r.torch}" for r in steps))
    return "\n\n" + section.strip().format(torches=torches, picture=HEAD_PICTURE, table=table_head(gpu, steps))


def table_head(gpu: Card, steps: Sequence[records.Record]) -> str:
    names = sorted({r.implementation for r in steps} - {OURS, PRODUCTS_ALONE}, key=place)

    def cell(r: records.Record | None) -> str:
        return f"{significant(r.us / 1e3)}, {significant((r.peak_mb or 0) / 1e3)}" if r else NOTHING

    def line(ours: records.Record) -> list[str]:
        products = gpu.get(ours, PRODUCTS_ALONE)
        share = f"{products.us / ours.us:.2f}" if products else NOTHING
        return [shape(ours), f"**{cell(ours)}**", share, *(cell(gpu.get(ours, name)) for name in names)]

    return table(["", OURS, "products", *names], (line(r) for r in steps if r.implementation == OURS))


def table_lengths(gpu: Card) -> str:
    def cell(op: str, size: str) -> str:
        both = (gpu.one(op=op, direction=direction, dtype=HALF, shape=size) for direction in DIRECTIONS)
        return ", ".join(f"{r.share_of_copy:.2f}" for r in both)

    shapes = sorted({r.shape for r in gpu.chosen(op="layer_norm", dtype=HALF)}, key=lambda s: int(s.split("x")[1]))
    rows = ([f"`{op}`", *(cell(op, size) for size in shapes)] for op in (*NORMS, *ELEMENTWISE))
    return table(["", *(s.replace("x", "×") for s in shapes)], rows)


def table_peers(gpu: Card) -> str:
    def cell(op: str, direction: str, dtype: str) -> str:
        return span(ratio for ratio, _ in gpu.best_ratios(gpu.chosen(op=op, direction=direction, dtype=dtype)))

    return table(
        heads(), ([f"`{op}`", *(cell(op, *column) for column in COLUMNS)] for op in (*NORMS, *ELEMENTWISE, *PRODUCTS))
    )


def table_cpu(cpu: Card) -> str:
    def cell(op: str, level: str, direction: str, dtype: str) -> str:
        ours = cpu.chosen(op=op, level=level, direction=direction, dtype=dtype)
        return span(ratio for ratio, _ in cpu.best_ratios(ours))

    levels = sorted({r.level for r in cpu.records}, reverse=True)
    rows = (
        [f"`{op}`, {level}", *(cell(op, level, *column) for column in COLUMNS)]
        for op in (*NORMS, *ELEMENTWISE)
        for level in levels
    )
    return table(heads(), rows)


def heads() -> list[str]:
    return ["", *(f"{direction}, {dtype}" for direction, dtype in COLUMNS)]


def limits(gpu: Card, losses: Card, cpu: Card) -> str:
    on_gpus = [behind(gpu, GPU), behind(losses, LOSSES_GPU)]
    return "\n".join([*on_gpus, behind_on_the_cpu(cpu), host(gpu), first(gpu)])


def behind(gpu: Card, name: str) -> str:
    """Where a peer is ahead on the GPU, the furthest first."""
    ratios = sorted(gpu.best_ratios(gpu.chosen()), key=lambda pair: (pair[0], pair[1].key))
    ahead = [(ratio, r) for ratio, r in ratios if ratio < 1 - TIES]
    furthest = "; ".join(f"{r.implementation} {ratio:.3f} in {named(r)}" for ratio, r in ratios[:3])
    return (
        f"- **On the {name.upper()}** a peer is ahead of fastops by more than {TIES:.0%} in {len(ahead)} of "
        f"{len(ratios)} measurements. The furthest, by its time over fastops': {furthest}."
    )


def behind_on_the_cpu(cpu: Card) -> str:
    ops = (*NORMS, *ELEMENTWISE)
    ratios = sorted(cpu.best_ratios([r for r in cpu.chosen() if r.op in ops]), key=lambda pair: (pair[0], pair[1].key))
    ahead = [(ratio, r) for ratio, r in ratios if ratio < 1 - TIES]
    least = ", ".join(f"{ratio:.3f} in {named(r)}, {r.level}" for ratio, r in ratios[:2])
    return (
        f"- **On the CPU** PyTorch is ahead by more than {TIES:.0%} in {len(ahead)} of {len(ratios)} measurements, all "
        f"of {listed(f'`{op}`' for op in dict.fromkeys(r.op for _, r in ahead))}; its time over fastops': {least}."
    )


def host(gpu: Card) -> str:
    """Host time of a small call."""

    def times(op: str, direction: str) -> str:
        ours = gpu.one("host", op=op, direction=direction, dtype=HALF)
        eager = gpu.get(ours, "eager")
        return f"{significant(ours.us)} ({significant(eager.us) if eager else NOTHING})"

    calls = "; ".join(
        f"`{op}` {times(op, 'forward')}, {times(op, 'forward+backward')}" for op in ("layer_norm", "rms_norm", "relu")
    )
    return (
        "- **Small calls** are bound by the host, where fastops' autograd node is Python's. 16 numbers, "
        f"{GPU.upper()}, µs (PyTorch's), forward, forward and backward: {calls}."
    )


def first(gpu: Card) -> str:
    ours = [r.us / 1e6 for r in gpu.chosen("first")]
    compiled = [[r.us / 1e6 for r in gpu.chosen(measure, "compile")] for measure in ("first", "again")]
    return (
        f"- **First result** in a fresh process, beyond PyTorch's import: fastops {span(ours)} s, `torch.compile` "
        f"{span(compiled[0])} s, and {span(compiled[1])} s with what an earlier process left on disk."
    )
