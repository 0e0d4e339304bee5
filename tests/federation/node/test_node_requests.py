"""Laws of what clients are asked: what is not believed is declined by name, before a batch is drawn or charged."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord

from fedsw._tools.settings import FederationError
from fedsw.federation.messages import MOST_BELIEVED
from fedsw.federation.node.node import Node
from tests.federation.local_runs import TRUST, attempts_in
from tests.federations import Saboteur, array_record, small

CENTRAL = ("privacy.epsilon=8.0", "federation.max_attempts=1")


def setting(name: str, value):
    return lambda content: content["config"].__setitem__(name, value)


def missing(record: str, name: str):
    return lambda content: content[record].pop(name)


def theta(values: torch.Tensor):
    return lambda content: content.__setitem__("model", array_record("theta", values))


def counts(values: list[list[float]]):
    asked = torch.from_numpy(np.array(values))
    return lambda content: content.__setitem__("arrays", array_record("counts", asked))


EVERYWHERE = [
    (setting("round", 0), "round came as 0; expected a whole number from 1 to 2"),
    (setting("round", 1.0), "round came as 1.0"),
    (setting("round", True), "round came as True"),
    (setting("round", "1"), "round came as '1'"),
    (setting("attempt", -1), "attempt came as -1; expected a whole number from 0"),
    (setting("attempt", [0]), r"attempt came as \[0\]"),
    (missing("config", "attempt"), "no setting 'attempt' came"),
    (setting("epsilon", 1.0), r"config\['epsilon'\] came, which \w+ does not hold in this run"),
    (lambda content: content.__setitem__("config", array_record("round", torch.ones(1))), "'round' came"),
    (lambda content: content.__setitem__("more", ConfigRecord({"x": 1})), r"more\['x'\] came"),
    (theta(torch.zeros(3)), r"theta came with shape \(3,\); expected \(17,\)"),
    (theta(torch.zeros(17, dtype=torch.float64)), "theta came as 'float64'; expected 'float32'"),
    (missing("model", "theta"), "no array 'theta' came"),
]
OF_CENTRAL = [
    (counts([[3.0, 2.5]]), "counts came as 'float64'; expected 'int64'"),
    (counts([[3]]), r"counts came with shape \(1, 1\); expected \(1, 2\)"),
    (counts([[3, 3], [3, 3]]), r"counts came with shape \(2, 2\); expected \(1, 2\)"),
    (counts([[3, -1]]), "counts did not come as whole numbers from 0"),
    (counts([[3, 2**41]]), "counts did not come as whole numbers from 0"),
    (missing("arrays", "counts"), "no array 'counts' came"),
    (setting("rows", -1), "rows came as -1"),
    (setting("nonce", [0.5, 2.0]), "nonce came as"),
]
OF_LOCAL = [
    (setting("sizes", [60.0, 60.0]), r"sizes came as \[60.0, 60.0\]; expected 2 whole numbers from 0 to 2\^40"),
    (setting("sizes", [60, MOST_BELIEVED + 1]), r"sizes came as \[60, 1099511627777\]"),
    (setting("sizes", [60, -1]), r"sizes came as \[60, -1\]"),
    (setting("sizes", [60]), r"sizes came as \[60\]"),
    (setting("records", MOST_BELIEVED + 1), "records came as 1099511627777; expected a whole number from 0 to 2"),
    (setting("records", -1), "records came as -1"),
]


def spoiling(kind: str, change) -> Saboteur:
    """Client 1 is asked for something else; a record that all clients get is put back for the others."""

    def hook(message, context):
        if message.metadata.message_type == kind and context.node_config["partition-id"] == 1:
            for name, record in list(message.content.items()):
                message.content[name] = type(record)(dict(record))
            change(message.content)

    return Saboteur(hook)


@pytest.mark.parametrize(("change", "words"), EVERYWHERE + OF_CENTRAL)
def test_a_request_that_is_not_believed_is_declined_by_name_before_a_batch_is_drawn(
    federation, monkeypatch, change, words
):
    drawn, draw = [], Node.draw
    monkeypatch.setattr(Node, "draw", lambda self, *asked: (drawn.append(asked), draw(self, *asked))[1])
    declined = rf"Client 1: .*{words}.*This client refuses train.outputs and charged nothing"
    with pytest.raises(FederationError, match=declined):
        federation.run(small(*CENTRAL), app=spoiling("train.outputs", change))
    assert len(drawn) == 2  # the two other clients


@pytest.mark.parametrize(("change", "words"), EVERYWHERE + OF_LOCAL)
@pytest.mark.parametrize("kind", ["train.tables", "train.local_gradients"])
def test_a_client_charges_nothing_for_a_request_that_it_does_not_believe(federation, kind, change, words):
    """Without a penalty the contribution is the first that an attempt is asked for."""
    alone = ("objective.alpha=0.0",) if kind == "train.local_gradients" else ()
    with pytest.raises(FederationError, match=rf"Client 1: .*{words}.*charged nothing"):
        federation.run(small(*TRUST, *alone), app=spoiling(kind, change))
    directory = federation.folder / "run1"
    assert attempts_in(directory, 0) == [(1, 0)]
    assert not (directory / "clients" / "client-1.sqlite").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting("task-weight", math.nan), "task-weight came as nan"),
        (setting("task-weight", -0.5), "task-weight came as -0.5"),
        (
            lambda content: content.__setitem__("arrays", array_record("cotangents", torch.zeros(60, 2).double())),
            "cotangents: not of the asked type and shape",
        ),
        (
            lambda content: content.__setitem__("arrays", array_record("cotangents", torch.zeros(60, 1))),
            "cotangents: not of the asked type and shape",  # they are float64, as the sums that they pull on
        ),
        (
            lambda content: content.__setitem__("arrays", array_record("cotangents", torch.zeros(1, 1).double())),
            "fewer rows of cotangents came than the batch has records",
        ),
    ],
)
def test_cotangents_that_do_not_fit_are_declined_and_no_count_is_shown(federation, change, words):
    with pytest.raises(FederationError) as refused:
        federation.run(small(*CENTRAL), app=spoiling("train.gradients", change))
    assert words in str(refused.value) and "shape (" not in str(refused.value)
