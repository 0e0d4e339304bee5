"""How results were made: how many, when, how long, on what machines, with what randomness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simulations.papers.study import Result, Study


def made(study: Study) -> str:
    """How many results, how long they took, when the last was made, and why ε is nominal where it is."""
    about = [result.about for result in study.results]
    if not about:
        return ""
    seconds = sum(float(each.get("seconds") or 0) for each in about)
    last = max(str(each.get("date") or "") for each in about)
    words = f" {len(about)} result{'s' if len(about) > 1 else ''}, {seconds / 60:.0f} minutes, {last[:10]}."
    nominal = dict.fromkeys(why for why in map(why_nominal, about) if why)
    return words + "".join(f" *Nominal: {why}.*" for why in nominal or ["it is seeded"] * study.figure.nominal)


def machines(studies: Iterable[Study]) -> str:
    """What all runs of a page were made on."""
    known: dict[str, None] = {}
    versions: dict[str, dict[str, None]] = {}
    for about in (each.about for study in studies for each in (*study.results, *study.derived) if each.about):
        hardware = about.get("hardware") or {}
        known[f"{hardware.get('machine')}, {hardware.get('cores')} cores, {hardware.get('device', 'cpu')}"] = None
        for name, version in (about.get("versions") or {}).items():
            versions.setdefault(name, {})[str(version)] = None
    named = ", ".join(f"{name} {' and '.join(each)}" for name, each in versions.items())
    return f"*{'; '.join(known)}; {named}.*" if known else ""


def randomness(results: Iterable[Result]) -> str:
    """`secret`, `nominal`, or both, of the results that a number is made of; that of no result was not run."""
    kinds = {bool(result.about.get("nominal")) for result in results}
    if not kinds:
        return "not run"
    return {True: "nominal", False: "secret"}[kinds.pop()] if len(kinds) == 1 else "secret; some nominal"


def why_nominal(about: Mapping[str, Any]) -> str:
    """Why a result's epsilon is nominal; empty where it is not."""
    stated = (about.get("guarantee") or {}).get("randomness") or "sampling and noise were seeded"
    return str(stated) if about.get("nominal") else ""
