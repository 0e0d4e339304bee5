"""Draw who sees what under each trust model, and where processes run: docs/images; make committed pictures small.

python -m benchmarks.pictures [--compact PICTURE ...]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw._tools import files
from fedsw.runs.report.figures import COLOURS, compact, house_style, new_panels, save

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PRIVATE, NOISED, PUBLIC = COLOURS[1], COLOURS[0], COLOURS[2]


@dataclass(frozen=True)
class Model:
    """A trust model in a picture: what goes up and down, where noise enters, who reads what."""

    name: str
    trusted: str
    up: tuple[tuple[str, str], ...]
    down: tuple[tuple[str, str], ...]
    noise_at: str
    released: str


MODELS = (
    Model(
        "none",
        "everybody is trusted",
        (("outputs", PRIVATE), ("clipped contribution", PRIVATE)),
        (("model", PRIVATE), ("cotangents", PRIVATE)),
        "",
        "model:\nno guarantee",
    ),
    Model(
        "central",
        "server and clients follow the protocol and keep what they receive",
        (("outputs", PRIVATE), ("clipped contribution", PRIVATE)),
        (("model", NOISED), ("cotangents", PRIVATE)),
        "server",
        "models and record:\n(ε, δ)",
    ),
    Model(
        "local-gradient",
        "nobody is trusted",
        (("noised table of outputs", NOISED), ("noised contribution", NOISED)),
        (("model", NOISED), ("slot means", NOISED)),
        "client",
        "everything sent:\n(ε, δ) of each client",
    ),
    Model(
        "local-slices",
        "nobody is trusted",
        (("noised random slices of features", NOISED),),
        (("model, where features depend on it", NOISED),),
        "client",
        "everything sent:\n(ε, δ) of each client",
    ),
    Model(
        "local-release",
        "nobody is trusted",
        (("privatised records, once", NOISED),),
        (),
        "client",
        "everything sent:\n(ε, δ) of each client",
    ),
    Model(
        "sketch",
        "server and clients follow the protocol and keep what they receive",
        (("exact sum, once", PRIVATE),),
        (),
        "server",
        "sketch, generator, samples:\n(ε, δ)",
    ),
    Model(
        "sketch-local",
        "nobody is trusted",
        (("noised sum, once", NOISED),),
        (),
        "client",
        "everything sent:\n(ε, δ) of each client",
    ),
)


@house_style()
def draw(model: Model) -> Any:
    """Three boxes and the messages between them."""
    figure, (axes,) = new_panels(1, 1, size=(7.2, 2.2))
    axes.set_axis_off()
    axes.set(xlim=(0, 10.1), ylim=(0, 2.75))
    _box(axes, 0.1, "client", "private records", noise=model.noise_at == "client")
    _box(axes, 4.3, "server", "sums, optimizer", noise=model.noise_at == "server")
    _box(axes, 8.2, "readers", model.released, noise=False, width=1.75)
    _arrows(axes, model.up, 1.95, 4.25, 2.2)
    _arrows(axes, model.down, 4.25, 1.95, 1.28)
    final = PRIVATE if model.noise_at == "" else NOISED
    axes.annotate("", (8.15, 1.6), (6.15, 1.6), arrowprops={"arrowstyle": "-|>", "color": final, "lw": 1.8})
    axes.text(7.15, 1.72, "model, record", ha="center", color=final, fontsize=8)
    axes.set_title(f"{model.name}: {model.trusted}", loc="left")
    axes.text(0.1, 0.02, "■ un-noised function of records", color=PRIVATE, fontsize=7.5)
    axes.text(3.2, 0.02, "■ noised, or a function of noised values", color=NOISED, fontsize=7.5)
    return figure


@house_style()
def draw_masked() -> Any:
    """Who holds what under `distributed`: sites, masks between every two, and what comes together at the server."""
    figure, (axes,) = new_panels(1, 1, size=(7.2, 3.1))
    axes.set_axis_off()
    axes.set(xlim=(0, 10.1), ylim=(-0.55, 3.4))
    from matplotlib.patches import FancyBboxPatch

    sites = [("site 1", 2.45, PRIVATE), ("site 2", 1.4, PRIVATE), ("C sites", 0.35, "0.4")]
    for name, low, colour in sites:
        look: dict[str, Any] = {"boxstyle": "round,pad=0.04", "fc": "white", "ec": colour}
        axes.add_patch(FancyBboxPatch((0.55, low), 2.0, 0.72, **look))
        axes.text(1.55, low + 0.52, name, ha="center", va="center", weight="bold", fontsize=8)
        axes.text(
            1.55, low + 0.2, "records; ledger first\n+ share of noise + masks", ha="center", va="center", fontsize=6
        )
        axes.annotate(
            "", (4.75, 1.75), (2.65, low + 0.36), arrowprops={"arrowstyle": "-|>", "color": PUBLIC, "lw": 1.4}
        )
    for low in (2.12, 1.07):
        axes.plot([0.9, 0.9], [low + 0.03, low + 0.3], color=PUBLIC, linestyle=":", lw=1.6)
    axes.plot([0.42, 0.25, 0.25, 0.42], [2.81, 2.81, 0.71, 0.71], color=PUBLIC, linestyle=":", lw=1.6)
    axes.text(3.75, 2.75, "uniform numbers", ha="center", color=PUBLIC, fontsize=7.5)
    both: dict[str, Any] = {"boxstyle": "round,pad=0.05", "fc": "0.95", "ec": "0.4", "ls": "--"}
    axes.add_patch(FancyBboxPatch((4.8, 0.75), 2.3, 1.9, **both))
    axes.text(5.95, 2.35, "server and C sites", ha="center", weight="bold", fontsize=8)
    held = "the sum of all other sites,\nwith the whole noise\nof the guarantee; nothing\nof one site"
    axes.text(5.95, 1.5, held, ha="center", va="center", color=NOISED, fontsize=7)
    axes.annotate("", (8.15, 1.6), (7.2, 1.6), arrowprops={"arrowstyle": "-|>", "color": NOISED, "lw": 1.8})
    _box(axes, 8.2, "readers", "model, record:\n(ε, δ)", noise=False, width=1.75)
    axes.set_title("distributed: nobody is trusted, at most C sites are on the server's side", loc="left")
    axes.text(0.1, -0.45, "⋯ masks of every two sites, which cancel in the sum", color=PUBLIC, fontsize=7.5)
    axes.text(4.6, -0.45, "■ noised, or a function of noised values", color=NOISED, fontsize=7.5)
    return figure


WAYS = (
    ("one process", ("server\nclients",)),
    ("several processes", ("server", "clients")),
    ("hosts by hand", ("server", "site", "site")),
    ("compose", ("server", "site", "site")),
    ("cluster", ("server", "site")),
    ("scheduler", ("Ray", "Ray")),
)
"""Ways to run a federation, and the processes of each; the middle three keep records apart."""


@house_style()
def draw_machines() -> Any:
    """A box for every process, inside the machine that it runs on; TLS between those that are apart."""
    from matplotlib.patches import FancyBboxPatch

    figure, (axes,) = new_panels(1, 1, size=(7.2, 2.5))
    axes.set_axis_off()
    axes.set(xlim=(0, 12), ylim=(0, 3.9))
    around = {"compose": ("one host", "-"), "hosts by hand": ("", ""), "cluster": ("each its own cluster", "")}
    for column, (way, processes) in enumerate(WAYS):
        left, apart = 2.0 * column + 0.1, column in (2, 3, 4)
        axes.text(left + 0.85, 3.6, way, ha="center", weight="bold", fontsize=8)
        said, whole = around.get(way, ("all records in one place", "-"))
        axes.text(left + 0.85, 0.1, said.replace(" in ", "\nin ").replace(" own ", "\nown "), ha="center", fontsize=6.5)
        if whole:
            look: dict[str, Any] = {"boxstyle": "round,pad=0.05", "fc": "0.95", "ec": "0.4", "ls": "--"}
            axes.add_patch(FancyBboxPatch((left, 0.75), 1.7, 2.6, **look))
        for row, name in enumerate(processes):
            low = 2.55 - 0.85 * row
            colour = PRIVATE if name != "server" else "0.4"
            look = {"boxstyle": "round,pad=0.03", "fc": "white", "ec": colour, "lw": 1.3}
            axes.add_patch(FancyBboxPatch((left + 0.2, low), 1.3, 0.5, **look))
            axes.text(left + 0.85, low + 0.25, name, ha="center", va="center", fontsize=7)
            if row:  # every site speaks to the server, and to no other
                line = {"arrowstyle": "<->", "color": PUBLIC if apart else "0.4", "lw": 1.2}
                line["connectionstyle"] = f"arc3,rad={0.2 * (1 - row)}"
                start, end = ((0.85, 2.55), (0.85, low + 0.5)) if row == 1 else ((1.5, 2.7), (1.5, low + 0.25))
                axes.annotate("", (left + end[0], end[1]), (left + start[0], start[1]), arrowprops=line)
    axes.text(4.1, 0.1, "■ TLS, signed requests", color=PUBLIC, fontsize=6.5)
    return figure


def main() -> None:
    """Write the pictures, or write those that are named again, small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compact", nargs="+", type=Path, metavar="PICTURE", help="PNG files, encoded again in place")
    asked = parser.parse_args()
    for path in asked.compact or ():
        files.replace(path, compact(path.read_bytes()), durable=False)
    for model in MODELS if asked.compact is None else ():
        print(save(draw(model), IMAGES / f"trust-{model.name}.png"))
    if asked.compact is None:
        print(save(draw_masked(), IMAGES / "trust-distributed.png"))
        print(save(draw_machines(), IMAGES / "machines.png"))


def _box(axes: Any, left: float, title: str, text: str, *, noise: bool, width: float = 1.8) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: dict[str, Any] = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "0.4"}
    axes.add_patch(FancyBboxPatch((left, 0.7), width, 1.8, **look))
    axes.text(left + width / 2, 2.2, title, ha="center", weight="bold")
    axes.text(left + width / 2, 1.55, text, ha="center", va="center", fontsize=7.5)
    if noise:
        axes.text(left + width / 2, 0.9, "+ Gaussian noise\nledger first", ha="center", color=NOISED, fontsize=7.5)


def _arrows(axes: Any, messages: tuple[tuple[str, str], ...], start: float, end: float, top: float) -> None:
    for row, (text, colour) in enumerate(messages):
        height = top - 0.38 * row
        axes.annotate("", (end, height), (start, height), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.4})
        axes.text((start + end) / 2, height + 0.06, text, ha="center", color=colour, fontsize=7.5)


if __name__ == "__main__":
    main()
