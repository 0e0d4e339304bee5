"""Cases of settings, accounts and searches."""

from __future__ import annotations

from benchmarks.malformed.case import Case
from benchmarks.malformed.inputs import limited, nothing, table, written

SETTINGS = (
    Case(
        "files without declared columns",
        "run bare.toml",
        written("bare.toml", 'name = "x"\ndata.source = "files"\n'),
        ("[data.columns]",),
    ),
    Case(
        "a source that there is not",
        "run fair-classification data.source=adlt",
        nothing,
        ("data.source", "nearest: 'adult'", "module:name"),
    ),
    Case(
        "a module that there is not",
        "run own.toml data={source='nowhere_at_all:table'}",
        table(),
        ("nowhere_at_all", "PYTHONPATH"),
    ),
    Case(
        "an edge outside the bounds",
        "run own.toml data.columns.sensitive={name='age',edges=[30,130]}",
        table(),
        ("the edge 130", "0 and 100"),
    ),
    Case("epsilon 0", "run fair-classification --epsilon 0", nothing, ("privacy.epsilon", "above 0")),
    Case("epsilon -1", "run fair-classification --epsilon -1", nothing, ("privacy.epsilon", "-1", "above 0")),
    Case("delta 2", "run fair-classification privacy.delta=2", nothing, ("privacy.delta", "2", "between 0 and 1")),
    Case(
        "a delta that round-off uses up",
        "budget --delta 1e-10 -p 1e-4 --steps 1000000 --noise-multiplier 1",
        nothing,
        ("1e-10", "1000000 steps", "2.3e-10"),
    ),
    Case(
        "an unknown key", "run fair-classification training.roundz=3", nothing, ("training.roundz", "training.rounds")
    ),
    Case("a misspelt experiment", "run fair-clasification", nothing, ("'fair-clasification'", "'fair-classification'")),
    Case("broken TOML", "run broken.toml", written("broken.toml", 'name = "x"\n[data\n'), ("broken.toml", "line 2")),
    Case("brackets without end", "run deep.toml", written("deep.toml", "a = " + "[" * 9000), ("deep.toml",)),
    Case(
        "a model that the task does not have", "run fair-classification model.kind=generator", nothing, ("'generator'",)
    ),
    Case(
        "a trust model that cannot run the task",
        "run fair-classification privacy.trust=local-release",
        nothing,
        ("local-release",),
    ),
    Case(
        "a flow with Adam",
        "run gaussians privacy.trust=local-slices local.algorithm=flow model.kind=particles training.optimizer=adam",
        nothing,
        ("training.optimizer", "'sgd'"),
    ),
    Case("too few clients", "run own.toml federation.min_clients=5", table(), ("min_clients is 5", "clients = 2")),
    Case("a data set's name that names no file", "run own.toml data.account=a/b", table(), ("'a/b'",)),
    Case(
        "a run beyond the limit of its data set",
        "run own.toml data.account=people",
        limited,
        ("'people'", "its limit is 0.1", "still fits"),
    ),
    Case("a limit that is none", "account limit people --epsilon inf --delta 1e-6", nothing, ("inf",)),
    Case("an account that there is not", "account show peeple", limited, ("'peeple'", "'people'")),
    Case("values to try that cannot be read", "tune own.toml --try training.rounds", table(), ("'training.rounds'",)),
    Case(
        "a search on records with nothing to score on",
        "tune own.toml --on-records --try training.rounds=2,3",
        table(),
        ("data.held_out",),
    ),
)
