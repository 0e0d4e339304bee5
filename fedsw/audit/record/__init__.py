"""`fedsw audit RUN`: everything that a run left in its folder, checked by recomputation.

Read `_folder` first, then a file for each subject: the chain of digests and the model (`_chain`), what rows cost
(`cost`), their noise against how far a record moves what they release (`_rows`), the guarantee wherever it is written
(`_promise`), and what may be published (`_published`). Digests and the composition of the rows are computed apart from
what made them. What a row should be charged, and what a summary should say, are asked of the functions that charge and
say it in a run: that these are right is what the tests of each of them show, by formulas written again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from pathlib import Path

from fedsw.audit.finding import AuditedPart, Check, Finding, How, content_of, rows_of, said_of
from fedsw.audit.record import _chain as model
from fedsw.audit.record import _promise as promise
from fedsw.audit.record import _published as published
from fedsw.audit.record import _rows as noise
from fedsw.audit.record import cost
from fedsw.audit.record._folder import Book, Folder, made, read_book, read_folder
from fedsw.experiment.choices import CodeRefused

CHECKS = (
    (model.CHAIN, model.check_chain),
    (cost.REPLAY, cost.check_replay),
    (cost.INDEPENDENT, cost.check_independent),
    (noise.NAME, noise.check),
    (published.NAME, published.check),
    (model.NAME, model.check),
    (promise.NAME, promise.check),
)


def audit(directory: Path, allow_modules: Collection[str] = ()) -> Finding:
    """Check a run's folder, finished, stopped or broken off; every check is made, whatever another one finds.

    What is shown is the epsilon of the recorded rows by a composition that is not fedsw's; it is not random, so it has
    no confidence. Nothing here can tell rows that were never written, noise that was never added,
    or a folder that was put back as a whole from an earlier copy.

    The settings may name `allow_modules` as `module:name`; their code runs.

    Raises:
        CodeRefused: if the settings name another module; none of its code has run.
        ValueError: if the folder is not a run, or the run is going on.
    """
    folder = read_folder(directory, allow_modules)
    try:
        _ = folder.settings
    except CodeRefused:
        raise
    except (ValueError, LookupError):
        pass  # what else is wrong with settings, a check says
    checks = [made(name, of, folder) for name, of in CHECKS]
    failed = [check.name for check in checks if check.passed is False]
    unread = [check.name for check in checks if check.unread]
    left = [check.name for check in checks if check.passed is None and not check.unread]
    worst = _worst(folder)
    parts = [] if worst is None else _parts(worst, recomputed=not failed and not unread and cost.REPLAY not in left)
    name, trust = folder.experiment["name"], folder.experiment["privacy"]["trust"]
    status = folder.summary.get("status", "no summary: it was killed, or its last process did not end in order")
    run = f"{name}, trust {trust}{', nominal (seeded)' if folder.seeded else ''}: {status}"
    unknown = math.inf if folder.claimed == math.inf else math.nan  # without a ledger that can be read
    drawable = worst is not None and bool(worst.rows) and all(0 < row.sigma < math.inf for row in worst.rows)
    return Finding(
        kind="record",
        subject=str(directory),
        claimed=folder.claimed,
        delta=folder.delta,
        shown=unknown if worst is None else cost.independent(worst).epsilon,
        confidence=None,
        outcome="failed" if failed else "could not be read" if unread else "passed",
        verdict=_verdict(failed, unread, left, len(checks), parts),
        rows=[("run", run), *((check.name, check.line) for check in checks), *rows_of(parts)],
        details={
            "experiment": name,
            "trust": trust,
            "status": folder.summary.get("status", "no summary"),
            "nominal": folder.seeded,
            "failed": failed,
            "not_checked": left,
            "not_read": unread,
            "parts": content_of(parts),
            "checks": [check.as_dict() for check in checks],
        },
        draw=functools.partial(cost.draw, folder, worst) if worst and drawable else None,
    )


def _parts(book: Book, *, recomputed: bool) -> list[AuditedPart]:
    """Rows by kind of the ledger that spent most: all of them are recomputed, and none of them is attacked."""
    kinds = {name: rows for name, rows in book.kinds.items() if rows}
    names = [name for name in kinds if name != "kept records"]
    parts = []
    for name, rows in kinds.items():
        alone = names == [name]  # its share is 1, without an account of its own
        square = 1.0 if alone else max((cost.square(book, group, rows) for group in book.groups), default=0.0)
        how: How = "recomputed" if recomputed else "no verdict"
        parts.append(AuditedPart(name, square, how, f"({len(rows)} of {len(book.rows)} rows)", name == "kept records"))
    return parts


def _verdict(failed: list[str], unread: list[str], left: list[str], count: int, parts: list[AuditedPart]) -> str:
    if failed:
        sentence = f"{len(failed)} of {count} checks failed: {', '.join(failed)}"
    else:
        made = count - len(left) - len(unread)
        sentence = f"nothing in the folder contradicts the claim ({made} of {count} checks)"
    sentence += f"; could not be read: {', '.join(unread)}" if unread else ""
    if parts and not failed and not unread:
        sentence += f"; {said_of(parts)}, recomputed and not attacked"
    return f"{sentence}; not checked: {', '.join(left)}" if left else sentence


def _worst(folder: Folder) -> Book | None:
    """The ledger that spent most by the independent accountant; None if nothing can be reported."""
    try:
        return max(folder.books, key=lambda book: cost.independent(book).epsilon, default=None)
    except Exception:  # the check of the same name says why
        return None


__all__ = [
    "CHECKS", "Check", "Folder", "audit", "cost", "model", "noise", "promise", "published", "read_book", "read_folder",
]  # fmt: skip
