"""What really travels, compared with the product's table: every array, metric and setting, with its type and shape.

Messages are looked at as Flower's records, not through the product's own encoder and decoder: whatever is in a record
and not in the table is a fault, whoever put it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsw.experiment import Experiment
from fedsw.experiment.preset_rules import left_open
from fedsw.federation.messages import EXCHANGES, Exchange, Message, Terms, trusts_of
from fedsw.federation.messages.codec import ArrayField, Field, NumberField, Text, fields_of
from fedsw.federation.trust.budget_shares import own_batch
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout, scores_of, tally_of
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.tasks.measures import sketcher_of
from fedsw.learning.tasks.problem import Problem
from tests.federations import numbers

Sent = tuple[str, tuple[int, ...]]
"""Type of the numbers and their shape; a lone number has shape ()."""

LEAVES: Mapping[str, set[str]] = {
    "query.roll": {"number", "code", "flower", "clock", "nonce"},
    "query.sizes": {"clients", "by group"},
    "query.hello": {"clients", "sizes", "epsilon", "record ids", "kept", "answered", "code", "nonce"},
    "train.histograms": {"steps", "lost"},
    "train.noisy_histograms": {"noised", "epsilon", "sigma", "nonce"},
    "train.masked_histograms": {"masked", "epsilon"},
    "train.moments": {"steps", "lost"},
    "train.noisy_moments": {"noised", "epsilon", "sigma", "nonce"},
    "train.outputs": {"outputs"},
    "train.gradients": {"contribution", "lost", "training-loss", "num-examples", "nonce"},
    "train.sum": {"contribution", "lost", "training-loss", "num-examples", "nonce"},
    "train.tables": {"noised", "epsilon", "sigma", "nonce"},
    "train.local_gradients": {"noised", "epsilon", "sigma", "nonce"},
    "query.ready": {"key", "fresh", "code"},
    "train.masked_tables": {"masked", "epsilon"},
    "train.masked_sum": {"masked", "epsilon"},
    "train.masked_sketch": {"masked", "epsilon"},
    "train.masked_moments": {"masked", "epsilon"},
    "evaluate.masked_tally": {"masked", "epsilon"},
    "train.masked_scores": {"masked", "epsilon"},
    "train.slices": {"projections", "directions", "epsilon", "sigma", "nonce"},
    "train.release": {"released", "epsilon", "nonce"},
    "train.records_sum": {"steps", "lost"},
    "train.sketch": {"noised", "epsilon", "sigma", "nonce"},
    "evaluate.tally": {"steps", "lost"},
    "evaluate.noisy_tally": {"noised", "epsilon", "sigma", "nonce"},
    "train.scores": {"steps", "lost"},
    "train.noisy_scores": {"noised", "epsilon", "sigma", "nonce"},
}
"""What may ever leave a client, written a second time: another field in the product's table needs a reason here too."""


def exchanges_of(experiment: Experiment) -> Mapping[str, Exchange]:
    """The exchanges of a run by their kind: under `central` two a round, or one where nothing is compared.

    Before the first round there is one more where moments are released, and one for histograms; after the last one
    where something of kept records is, or where scores are counted.
    """
    compared = (
        {"train.sum"}
        if experiment.objective.alpha > 0
        else {"train.outputs", "train.gradients", "train.tables", "train.masked_tables"}
    )
    compared |= {"train.masked_tables", "train.masked_sum"} if experiment.stages else {"train.masked_sketch"}
    if not experiment.data.held_out_released:
        compared |= {"evaluate.tally", "evaluate.noisy_tally", "evaluate.masked_tally"}
    if not experiment.share_of_scores:
        compared |= {"train.scores", "train.noisy_scores", "train.masked_scores"}
    if not experiment.privacy.moments:
        compared |= {"train.moments", "train.noisy_moments", "train.masked_moments"}
    if not experiment.privacy.histograms:
        compared |= {"train.histograms", "train.noisy_histograms", "train.masked_histograms"}
    if not left_open(experiment):
        compared |= {"query.sizes"}
    of_trust = [exchange for exchange in EXCHANGES if experiment.privacy.trust in trusts_of(exchange)]
    return {exchange.kind: exchange for exchange in of_trust if exchange.kind not in compared}


class Inspector:
    """Compares messages with the table; `faults` says what they should not have carried, `seen` which fields came."""

    def __init__(self, experiment: Experiment) -> None:
        self.task, self._experiment = Problem.from_experiment(experiment), experiment
        self._table = exchanges_of(experiment)
        self._sizes: dict[int, dict[str, int]] = {}
        self._greeted = Counter[int]()
        self.kinds: set[str] = set()
        self.faults: list[str] = []
        self.seen: set[tuple[type[Message], str]] = set()

    def request(self, message: Any, context: Any) -> None:
        """A message on its way to a client."""
        client, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        if kind not in self._table:
            self.faults.append(f"{kind} is no message of trust {self._experiment.privacy.trust}")
            return
        if kind == "query.hello":  # the second, after histograms, has the bins that they led to
            self.task = Problem.from_experiment(Experiment.model_validate_json(message.content["config"]["experiment"]))
        if kind == "train.outputs":
            self._sizes[client]["P"] = message.content["config"]["rows"]
        if kind == "train.masked_tables":
            cells, k = len(self.task.objective.cells), self._sizes[client]["k"]
            self._sizes[client]["x"] = self._sizes[client]["y"] = cells * k * self._experiment.local.bins
        if kind == "train.masked_histograms":
            histograms = histograms_of(self.task)
            self._sizes[client]["y"] = len(histograms.columns) * histograms.width
        if kind == "train.masked_moments":
            layout = moments_layout(self.task)
            self._sizes[client]["y"] = layout.cells * layout.width
        if kind == "evaluate.masked_tally":
            tally = tally_of(self.task)
            self._sizes[client]["y"] = tally.groups * tally.width
        if kind == "train.masked_scores":
            counts = scores_of(self.task)
            self._sizes[client]["y"] = counts.groups * counts.width
        if kind == "train.masked_sum":
            self._sizes[client]["y"] = self.task.parameters
        if kind == "train.masked_sketch":
            sketcher = sketcher_of(self.task, Stage(message.content["config"]["round"]))
            self._sizes[client]["y"] = sketcher.law.cells * (sketcher.coordinates + 1)
        if kind in ("train.records_sum", "train.sketch") and self._experiment.sketch.stages:
            stage = Stage(message.content["config"]["round"])
            self._sizes[client]["w"] = sketcher_of(self.task, stage).coordinates + 1
        self._compare(f"{kind} down", message.content, self._table[kind].down, client)

    def reply(self, message: Any, reply: Any, context: Any) -> None:
        """A client's answer."""
        client, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        self.kinds.add(kind)
        if not reply.has_content():
            self.faults.append(f"{kind} up carries an error: {reply.error.reason}")
            return
        if kind == "query.sizes":
            self._sizes[client] = {"S": 1, "g": len(self.task.groups)}
        if kind == "query.hello":
            sizes = numbers(reply.content["arrays"]["sizes"])[0].tolist()
            batch = sum(own_batch(sizes, self._experiment.training.batch_fraction))
            self._sizes[client] = {f"N_{cell}": size for cell, size in enumerate(sizes)}
            self._sizes[client].update(
                N=sum(sizes),
                n=batch,
                S=1,
                L=0,
                A=self._greeted[client],
                k=self.task.clipped.directions(1, 0)[0].shape[1],
            )
            self._greeted[client] += 1
        self._compare(f"{kind} up", reply.content, self._table[kind].up, client)

    def _compare(self, where: str, content: RecordDict, kind: type[Message], client: int) -> None:
        terms = Terms.of(self.task, **self._sizes.get(client, {}))
        wanted: dict[tuple[str, str], tuple[str, Sent]] = {}
        for attribute, field in fields_of(kind).items():
            if field.present(terms):
                for key in field.keys(terms):
                    wanted[field.record, key] = attribute, _declared(field, key, terms)
        nonce = ("metrics", "nonce")
        if nonce in wanted and not any(record == "metrics" for record, key in wanted if (record, key) != nonce):
            del wanted[nonce]  # of a record that there is not
        came = {(name, key): _sent(record, value) for name, record in content.items() for key, value in record.items()}
        for (record, key), found in came.items():
            if (record, key) not in wanted:
                self.faults.append(f"{where}: {record}[{key!r}] is not in the table")
                continue
            attribute, sent = wanted[record, key]
            self.seen.add((kind, attribute))
            if found != sent:
                self.faults.append(f"{where}: {record}[{key!r}] is {found}, not {sent}")
        for record, key in wanted.keys() - came.keys():
            self.faults.append(f"{where}: {record}[{key!r}] is in the table and did not come")


def _declared(field: Field, key: str, terms: Terms) -> Sent:
    if isinstance(field, ArrayField):
        run = terms.agreed.experiment.training.precision
        shape = [f"{field.shape}_{key}"] if field.by_cell else field.shape.split()
        return run if field.precision == "run" else field.precision, tuple(terms.sizes[side] for side in shape)
    if isinstance(field, Text):
        return "str", ()
    assert isinstance(field, NumberField)
    lengths = () if field.count is None else (field.count,)
    return field.kind.__name__, tuple(terms.sizes[count] if isinstance(count, str) else count for count in lengths)


def _sent(record: ArrayRecord | ConfigRecord | MetricRecord, value: Any) -> Sent:
    if isinstance(record, ArrayRecord):
        return value.dtype, tuple(value.shape)
    if isinstance(value, list):
        return "/".join(sorted({type(each).__name__ for each in value})), (len(value),)
    return type(value).__name__, ()
