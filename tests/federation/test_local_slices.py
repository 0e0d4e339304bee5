"""Laws of runs on noised slices and one-shot releases: what leaves a client, what it costs, what is learned from it."""

from __future__ import annotations

import io
import math

import pytest
import torch
from flwr.app import Array, ArrayRecord
from rich.console import Console
from safetensors.torch import load_file
from scipy.stats import chi2, ncx2

from fedsw._tools.settings import FederationError
from fedsw.data.sources import load_held_out
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation import messages, wire
from fedsw.federation.node.replies import join
from fedsw.federation.trust.local_slices import noised_slices as local_slices
from fedsw.learning.tasks.measures import measure
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, Slicing, Step, epsilon
from fedsw.privacy.local_release import RecordRelease, project_ball
from fedsw.privacy.mechanisms import spacing
from fedsw.runs.report.run_documents import summary_screen
from fedsw.runs.view import read_run
from tests.federations import Saboteur

SLICES = {
    "name": "slices",
    "data": {"source": "gaussians", "records": 600, "test_records": 300},
    "model": {"kind": "generator", "latent": 2, "hidden": [16]},
    "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
    "slicing": {"directions": 4},
    "training": {"rounds": 3, "learning_rate": 0.02, "batch_fraction": 0.2, "optimizer": "adam"},
    "privacy": {"trust": "local-slices", "noise_multiplier": 2.0, "delta": 1e-5},
    "federation": {"clients": 3, "timeout": 20.0},
    "evaluate_every": 3,
}
RELEASE = {**SLICES, "name": "release", "privacy": {"trust": "local-release", "epsilon": 10.0, "delta": 1e-5}}
FLOW = {
    **SLICES,
    "name": "flow",
    "model": {"kind": "particles", "particles": 200},
    "training": {"rounds": 5, "learning_rate": 0.5, "batch_fraction": 0.2},
    "local": {"algorithm": "flow"},
}


def experiment(base: dict, *overrides: str) -> Experiment:
    return parse_experiment(base, overrides)


@pytest.fixture
def run(federation):
    def start(chosen: Experiment, name: str = "run", **settings):
        directory = federation.folder / name
        return federation.run(chosen, directory=directory, **settings), directory

    return start


def ledgers(directory):
    return [Ledger.open(path, read_only=True) for path in sorted((directory / "clients").glob("*.sqlite"))]


def released_in(directory) -> torch.Tensor:
    files = sorted((directory / "releases").iterdir())
    return torch.cat([load_file(file)["released"] for file in files])


def read(reply, name: str) -> torch.Tensor:
    array = reply.content["arrays"][name]
    return wire.decode(
        array.dtype, array.shape, array.stype, array.data, expected=(None,) * len(array.shape), name=name
    )


@pytest.mark.parametrize("overrides", [(), ("slicing.directions=3",), ("slicing.scheme=iid",)])
def test_only_noised_projections_leave_a_client(run, overrides):
    """Every number is on the noise's grid, its deviation is the noise's, and no two messages are alike."""
    sent: list[torch.Tensor] = []

    def keep(message, reply):
        if message.metadata.message_type == messages.SLICES.kind:
            assert set(reply.content["arrays"]) <= {"projections", "directions"}
            assert set(reply.content["metrics"]) == {"epsilon", "sigma", wire.NONCE}
            sent.append(read(reply, "projections").double())
        else:
            assert message.metadata.message_type == messages.HELLO.kind
        return reply

    chosen = experiment(SLICES, *overrides)
    summary, directory = run(chosen, app=Saboteur(after=keep))
    assert summary["status"] == "completed"
    assert len(sent) == 3 * 3
    radius = chosen.clip.output
    sigma = 2.0 * 2 * radius
    step = spacing(sigma)
    for values in sent:
        # Sum of squares of the noise alone at least; a projection adds to it no more than that of the whole radius.
        n, squares = values.numel(), float((values / sigma).square().sum())
        assert chi2.ppf(1e-10, n) < squares < ncx2.isf(1e-10, n, n * (radius / sigma) ** 2)
        assert torch.equal(values, step * (values / step).round())
    assert not any(torch.equal(sent[0], other) for other in sent[1:])


def test_clients_with_whole_blocks_share_the_public_directions_and_others_draw_their_own(run):
    found = {}

    def keep(message, reply):
        if message.metadata.message_type == messages.SLICES.kind:
            found.setdefault("directions" in reply.content["arrays"], []).append(reply)
        return reply

    run(experiment(SLICES), "shared", app=Saboteur(after=keep))
    assert set(found) == {False}
    found.clear()
    run(experiment(SLICES, "slicing.directions=3"), "own", app=Saboteur(after=keep))
    assert set(found) == {True}
    drawn = [read(reply, "directions") for reply in found[True]]
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:])


def test_every_clients_ledger_holds_its_releases_at_the_exact_profile(run):
    summary, directory = run(experiment(SLICES, "slicing.directions=3"))
    step = Step(40 / 200, 1 / 2.0, slicing=Slicing(2, 3, "orthogonal"))
    expected = epsilon({step: 3}, 1e-5)
    for ledger in ledgers(directory):
        with ledger:
            assert ledger.replay() == pytest.approx(expected, rel=1e-9)
            assert [(entry.round, entry.slicing) for entry in ledger.entries()] == [
                (round_, Slicing(2, 3, "orthogonal")) for round_ in (1, 2, 3)
            ]
    assert summary["epsilon_spent"] == pytest.approx(expected, rel=1e-9)
    assert summary["guarantee"]["against"].startswith("everyone")
    assert not (directory / "ledger.sqlite").exists()


@pytest.mark.parametrize("overrides", [(), ("seed=4",)])
def test_rows_of_a_batch_come_in_an_order_that_tells_nothing_of_their_records(run, monkeypatch, overrides):
    """Sampling amplifies rows only if a replaced record may stand at any place of the batch."""
    orders: list[list[int]] = []
    inner = local_slices._shuffled_batch

    def watched(*arguments):
        records = inner(*arguments)
        orders.append(records.ids.tolist())
        return records

    monkeypatch.setattr(local_slices, "_shuffled_batch", watched)
    run(experiment(SLICES, *overrides))
    assert len(orders) == 9
    for order in orders:
        rises = sum(later > earlier for earlier, later in zip(order, order[1:], strict=False))
        assert 5 < rises < 34  # of 39; 19.5 on average, beyond once in 10^16
        assert len(set(order)) == 40
    assert len({tuple(order) for order in orders}) == 9


def test_a_replayed_request_is_refused(run):
    """A second answer for the same attempt would be new noise on the same round's budget."""
    kept = {}

    def replay(message, context):
        if message.metadata.message_type == messages.SLICES.kind:
            client = context.node_config["partition-id"]
            kept.setdefault(client, message.content["config"]["round"])
            message.content["config"]["round"] = kept[client]
            message.content["config"]["attempt"] = 0

    with pytest.raises(FederationError, match="is charged"):
        run(experiment(SLICES), app=Saboteur(replay))


def test_one_release_is_charged_once_and_serves_every_round(run):
    chosen = experiment(FLOW, "local.algorithm=flow-one-release", "slicing.directions=40")
    summary, directory = run(chosen)
    assert summary["status"] == "completed"
    for ledger in ledgers(directory):
        with ledger:
            entries = ledger.entries()
            assert [(entry.round, entry.sampling_rate) for entry in entries] == [(1, 1.0)]
    stored = load_file(directory / "releases" / "client-0.safetensors")
    assert stored["projections"].shape == (200, 40)


APART = {
    "fresh slices": (experiment(FLOW, "training.rounds=2"), "local.towards=barycentre"),
    "stored slices": (experiment(FLOW, "local.algorithm=flow-one-release"), "local.towards=barycentre"),
    "noised records": (experiment(RELEASE), "local.loss=barycentre"),
}
"""Every way to a barycentre of clients that are trusted by nobody, and the setting that asks for it."""


@pytest.mark.parametrize("name", sorted(APART))
def test_a_barycentre_costs_every_client_what_the_mixture_costs_and_ends_elsewhere(run, name):
    base, setting = APART[name]
    rows, ends = list[list[tuple[float, ...]]](), list[dict[str, torch.Tensor]]()
    for folder, more in (("mixture", ()), ("barycentre", (setting,))):
        summary, directory = run(parse_experiment(base.model_dump(exclude_unset=True), ("seed=3", *more)), folder)
        assert summary["status"] == "completed"
        rows.append([(e.round, e.sampling_rate, e.sensitivity, e.sigma) for e in entries_of(directory)])
        ends.append(load_file(directory / "model.safetensors"))
    assert rows[0] == rows[1] and rows[0]
    assert not all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def entries_of(directory):
    for ledger in ledgers(directory):
        with ledger:
            yield from ledger.entries()


def test_a_barycentre_of_noised_records_needs_gaussian_noise():
    with pytest.raises(ExperimentError, match="loss 'barycentre' smooths with Gaussian noise alone"):
        experiment(RELEASE, "local.loss=barycentre", "local.mechanism=laplace", "local.norm=l1")


@pytest.mark.parametrize("base", [experiment(FLOW, "local.algorithm=flow-one-release"), experiment(RELEASE)])
def test_a_completed_run_on_one_release_reads_as_completed(run, base):
    summary, directory = run(base)
    assert summary["released_rounds"] == 1
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_screen(read_run(directory)))
    text = console.export_text()
    assert f" clients, {base.training.rounds} rounds on one release" in text
    assert ("(200 particles)" in text) == (base.model.kind == "particles")
    assert "of the one release" in summary["guarantee"]["statement"]


def test_a_resumed_flow_reads_its_stored_slices_and_releases_nothing_more(run):
    chosen = experiment(FLOW, "local.algorithm=flow-one-release", "slicing.directions=40", "seed=3")
    _, whole = run(chosen, "whole")

    class Stop(Exception):
        pass

    class Interrupt:
        def started(self, plan): ...
        def round_done(self, record):
            if record["round"] == 3:
                raise Stop

        def finished(self, summary): ...

    with pytest.raises(Stop):
        run(chosen, "cut", observer=Interrupt())
    summary, cut = run(chosen, "cut", resume=True)
    assert summary["status"] == "completed"
    for ledger in ledgers(cut):
        with ledger:
            assert len(ledger.entries()) == 1
    ends = [load_file(folder / "model.safetensors") for folder in (whole, cut)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_generated_points_are_measured_against_the_target_that_they_are_drawn_to():
    """With `row_norm` the target is the scaled records: points that are there are at distance 0."""
    task = Problem.from_experiment(experiment(FLOW, "data.row_norm=0.5"))
    held_out = load_held_out(task.experiment.record_source)
    assert held_out is not None
    there = torch.nn.Module()
    there.forward = lambda: task.inputs(held_out)
    found = measure(task, held_out, there)
    assert found.report["sw2"] == 0.0
    assert torch.equal(found.arrays["reference"], found.arrays["outputs"])


def test_without_noise_a_flow_reaches_its_target(run):
    chosen = ("privacy.epsilon=inf", "seed=2")
    far = run(experiment(FLOW, *chosen, "training.rounds=1"), "far")[0]
    near = run(experiment(FLOW, *chosen, "training.rounds=40", "slicing.directions=20"), "near")[0]
    assert near["held_out"]["sw2"] < 0.4 * far["held_out"]["sw2"]
    assert near["epsilon_of_reader"] == "inf" or math.isinf(near["epsilon_of_reader"])


@pytest.mark.parametrize("loss", ["entropic", "plain", "sinkhorn", "wavelet"])
def test_a_release_is_asked_for_once_and_every_loss_learns_from_it(run, loss):
    asked = []

    def look(message, context):
        asked.append(message.metadata.message_type)

    summary, directory = run(experiment(RELEASE, f"local.loss={loss}"), app=Saboteur(look))
    assert summary["status"] == "completed"
    assert asked.count(messages.RELEASE.kind) == 3 and set(asked) == {messages.HELLO.kind, messages.RELEASE.kind}
    assert released_in(directory).shape == (600, 2)


def test_what_is_released_is_noised_for_the_diameter(run, monkeypatch):
    records: list[torch.Tensor] = []
    bounded = RecordRelease.bounded

    def watched(release, features):
        records.append(project_ball(features, 1.0, "l2"))
        return bounded(release, features)

    monkeypatch.setattr(RecordRelease, "bounded", watched)
    _, directory = run(experiment(RELEASE))
    released = released_in(directory).double()
    units = (released - torch.cat(records)) / RecordRelease(10.0, 1e-5, 1.0).scale
    assert 1e-9 < chi2.cdf(float(units.square().sum()), units.numel()) < 1 - 1e-9
    with ledgers(directory)[0] as ledger:
        assert ledger.replay() == pytest.approx(10.0, rel=1e-4)


def test_laplace_noise_is_accounted_for_as_pure(run):
    laplace = ("local.mechanism=laplace", "local.norm=l1", "privacy.epsilon=4.0")
    summary, directory = run(experiment(RELEASE, *laplace))
    assert summary["epsilon_spent"] == pytest.approx(4.0, rel=1e-6)
    assert summary["guarantee"]["accountant"] == "laplace"
    assert summary["delta"] == 0.0
    statement = summary["guarantee"]["statement"]
    assert statement.startswith("pure 4-differential privacy, delta = 0 (") and "of the one release" in statement
    assert "scale b/Delta = 0.25." in statement and "sigma" not in statement


def test_the_papers_diameter_costs_what_it_truly_costs(run):
    summary, _ = run(experiment(RELEASE, "local.diameter=paper", "privacy.epsilon=1.0"))
    assert summary["epsilon_spent"] > 2.0


def test_values_that_are_not_finite_lose_their_sender_by_name(run):
    def spoil(message, reply):
        if message.metadata.message_type == messages.RELEASE.kind and message.metadata.dst_node_id == 1001:
            values = read(reply, "released")
            values[0, 0] = math.nan
            reply.content["arrays"] = ArrayRecord({"released": Array(*wire.encode(values))})
        return reply

    with pytest.raises(FederationError, match="Client 1: unreadable release: released are not all finite"):
        run(experiment(RELEASE), app=Saboteur(after=spoil))


def test_cosine_coefficients_of_no_square_image_are_refused_before_a_client_is_asked(run):
    asked = []

    def look(message, context):
        asked.append(message.metadata.message_type)

    with pytest.raises(ExperimentError, match=r"records have 2 features, which is no square image"):
        run(experiment(RELEASE, "local.dct=true"), app=Saboteur(look))
    assert asked == []


def test_a_client_refuses_cosine_coefficients_of_no_square_image_at_the_greeting():
    asked = experiment(RELEASE, "local.dct=true").model_dump_json()
    with pytest.raises(ExperimentError, match="no square image"):
        join(asked, "", 1, {"partition-id": 0, "num-partitions": 1})


@pytest.mark.parametrize(
    ("base", "overrides", "words"),
    [
        (RELEASE, ("local.mechanism=laplace",), "l1"),
    ],
)
def test_what_would_void_a_guarantee_is_refused_before_anything_is_spent(run, base, overrides, words):
    with pytest.raises((FederationError, ValueError), match=words):
        run(experiment(base, *overrides))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.kind=particles",), "flows"),
        (("privacy.trust=local-gradient",), "local-slices"),
        (("privacy.accountant=clt", "privacy.trust=central"), "random slices"),
        (("objective.protected=both",), "central"),
    ],
)
def test_a_method_that_a_task_cannot_run_says_why_and_which_can(overrides, words):
    with pytest.raises(ExperimentError, match=words):
        experiment(SLICES, *overrides)


def test_flows_take_euler_steps_only():
    with pytest.raises(ExperimentError, match="sgd"):
        experiment(FLOW, "training.optimizer=adam")
