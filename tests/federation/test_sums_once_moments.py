"""Laws of moments that are released before the first round: what leaves, at what cost, once, and what follows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedsw._tools.settings import FederationError
from fedsw.audit.record import audit
from fedsw.experiment import ExperimentError
from fedsw.experiment.compatibility import relation_of
from fedsw.federation.engines.driver import resume, run
from fedsw.federation.messages import MOMENTS, NOISY_MOMENTS, Terms, encode
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import held_records
from fedsw.federation.server import releases_once
from fedsw.federation.server.releases_once import unprepared
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust.budget_shares import PART, budget_split, shares, sum_budget
from fedsw.federation.trust.local_gradient.noising import Request
from fedsw.federation.trust.sums_once import MomentSum
from fedsw.learning.models import flatten
from fedsw.learning.moments.beside_rounds import moments_layout
from fedsw.learning.moments.moments_sum import STEP, sums_of
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import AlreadySpent, BudgetExhausted, Ledger, Step, epsilon_by, noise_multiplier
from fedsw.privacy.accounting.lifetime import DatasetAccount, LimitReached, accounts_folder, added
from fedsw.privacy.accounting.lifetime.composing import one_of
from fedsw.runs.directory import RunDirectory
from fedsw.runs.observer import NoObserver
from tests.federation.node import releases
from tests.federation.node.releases import summed
from tests.federations import Federation, Saboteur, array, numbers, small
from tests.noises import require_gaussian
from tests.privacy.accounting.test_composition_alternatives import chosen_as_one_goes

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

LOCAL = ("privacy.trust=local-gradient", "privacy.delta=1e-5")
FIRST = ("privacy.moments=0.3", "privacy.delta=1e-5")
ALONE = {"partition-id": 0, "num-partitions": 3}
SITE = {"partition-id": 0, "num-partitions": 1}


class Stopped(Exception):
    """What ends a run between two rounds."""


class StopAfter(NoObserver):
    """Ends a run when a round is done."""

    def __init__(self, last: int) -> None:
        self._last = last

    def round_done(self, record):
        if record["round"] == self._last:
            raise Stopped


def exact(chosen):
    """The moments of all records (cells, u), without noise."""
    task = Problem.from_experiment(chosen)
    return sums_of(task, moments_layout(task), held_records(task, SITE).records).double() * STEP


def stored(directory):
    found = json.loads((directory / "moments.json").read_text())
    return {**found, "values": torch.tensor(found["values"], dtype=torch.float64)}


def rows_of(path):
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.entries(), ledger.epsilon()


def test_noise_that_guarantees_nothing_leaves_no_part_of_epsilon_to_moments():
    asked = small("privacy.moments=0.3", "privacy.delta=1e-5", "privacy.noise_multiplier=1e-6")
    with pytest.raises(ValueError, match="privacy.noise_multiplier = 1e-06 spend an infinite epsilon.*use a larger"):
        shares(asked, rate=0.1, delta=1e-5)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("asked", ["privacy.epsilon=1.0", "privacy.noise_multiplier=4.0"])
def test_moments_and_all_rounds_compose_to_the_promised_epsilon(share, rate, asked):
    chosen = small(f"privacy.moments={share}", "privacy.delta=1e-5", asked, "training.rounds=40")
    found = shares(chosen, rate=rate, delta=1e-5)
    both = [(Step(1.0, 1 / found.moments), 1), (Step(rate, 1 / found.rounds), 40)]
    epsilon = epsilon_by("pld", both, 1e-5)
    assert found.epsilon * (1 - 1e-4) < epsilon <= found.epsilon * (1 + 1e-9)
    if rate == 1.0:  # squares of mu add
        total = 1 / found.moments**2 + 40 / found.rounds**2
        assert 1 / found.moments**2 / total == pytest.approx(share, rel=1e-3)
    own = small(*LOCAL, f"privacy.moments={share}", asked, "training.rounds=40")
    split = budget_split(own, rate=rate, delta=1e-5)
    assert (split.moments, split.rounds, split.epsilon) == (found.moments, found.rounds, found.epsilon)


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_moments_are_charged_once_and_whole_before_the_rounds(tmp_path, federation, trust):
    chosen = small(*FIRST, *trust)
    summary = federation.run(chosen)
    folder = federation.folder / "run1"
    ledgers = sorted(folder.glob("clients/*.sqlite")) if trust else [folder / "ledger.sqlite"]
    assert len(ledgers) == (3 if trust else 1)
    for path in ledgers:
        entries, epsilon = rows_of(path)
        first = [entry for entry in entries if entry.round == 0]
        assert entries[: len(first)] == first and {entry.sampling_rate for entry in first} == {1.0}
        assert all(entry.sensitivity >= math.sqrt(2) for entry in first)
        steps = [(Step(e.sampling_rate, e.sensitivity / e.sigma), 1) for e in entries if e.group == first[0].group]
        assert len(steps) == 5 and epsilon_by("pld", steps, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    assert 0.99 * summary["epsilon"] < summary["epsilon_spent"] <= summary["epsilon"] * (1 + 1e-9)
    assert summary["released_rounds"] == 4
    assert "one release of moments" in summary["guarantee"]["statement"]


@pytest.mark.slow
@pytest.mark.parametrize("trust", [(), LOCAL])
def test_what_is_added_to_moments_is_noise_of_the_planned_scale_in_every_number(federation, trust):
    chosen, added = small(*FIRST, *trust, "training.rounds=1"), []
    for _ in range(6):
        federation.run(chosen)
        found = stored(federation.folder / f"run{federation.runs}")
        added.append((found["values"] - exact(chosen)).reshape(-1))
    multiplier = shares(chosen, rate=0.2, delta=1e-5).moments
    least = sum_budget(PART, moments_layout(Problem.from_experiment(chosen)), multiplier, relation_of(chosen)).sigma
    assert found["sigma"] == pytest.approx(least * (math.sqrt(3) if trust else 1.0), rel=1e-6)
    require_gaussian(torch.stack(added), found["sigma"])


@pytest.mark.parametrize("sites", [1, 3])
def test_without_noise_moments_are_those_of_all_records_however_they_are_spread(federation, sites):
    chosen = small("privacy.trust=none", "privacy.moments=0.3", f"federation.sites={sites}")
    summary = federation.run(chosen)
    found = stored(federation.folder / "run1")
    assert torch.equal(found["values"], exact(chosen)) and found["sigma"] == 0.0
    assert summary["epsilon"] == math.inf and summary["held_out"]["accuracy"] > 0.7


def test_seeded_moments_and_models_are_the_same_however_clients_are_spread_over_sites(tmp_path):
    for trust in ((), LOCAL):
        values, models = [], []
        for sites in (1, 3):
            directory = tmp_path / f"{len(trust)}{sites}"
            Federation(tmp_path).run(small(*FIRST, *trust, f"federation.sites={sites}", "seed=3"), directory=directory)
            values.append(stored(directory)["values"])
            models.append(load_file(directory / "model.safetensors")["0.weight"])
        assert torch.allclose(*values, atol=1e-9) and torch.allclose(*models, atol=1e-5)


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_a_run_with_moments_passes_its_own_audit_and_fails_it_where_they_cost_less(federation, trust):
    federation.run(small(*FIRST, *trust))
    folder = federation.folder / "run1"
    assert audit(folder).passed
    path = folder / "moments.json"
    content = json.loads(path.read_text())
    content["values"][0][0] = content["records"][0] * (math.floor(2**14 * content["counted"]) / 2**14) ** 2
    content["values"][1][0] = content["records"][1] * (math.floor(2**14 * content["counted"]) / 2**14) ** 2
    path.write_text(json.dumps(content))
    assert not audit(folder).passed
    path.unlink()
    assert not audit(folder).passed


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_a_run_that_goes_on_has_the_moments_that_it_had_and_ends_with_the_same_bits(tmp_path, trust):
    chosen = small(*FIRST, *trust, "seed=4")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    Federation(tmp_path).run(chosen, directory=whole)
    with pytest.raises(Stopped):
        Federation(tmp_path).run(chosen, directory=cut, observer=StopAfter(2))
    before, asked = stored(cut), []
    app = Saboteur(lambda message, context: asked.append(message.metadata.message_type))
    Federation(tmp_path).run(chosen, directory=cut, resume=True, app=app)
    assert torch.equal(stored(cut)["values"], before["values"])
    assert asked and not {MOMENTS.kind, NOISY_MOMENTS.kind} & set(asked)
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_moments_that_were_charged_and_lost_are_not_released_again_for_nothing(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(28, "no space left on device")

    chosen, directory = small(*FIRST), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Exception, match="space"):
        patch.setattr("fedsw.federation.server.releases_once.write_json", failing)
        Federation(tmp_path).run(chosen, directory=directory)
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    entries, epsilon = rows_of(directory / "ledger.sqlite")
    assert sum(entry.round == 0 for entry in entries) == 4 and epsilon <= summary["epsilon"] * (1 + 1e-9)
    assert summary["released_rounds"] < 4 and "stopped" in summary["status"]


def test_what_leaves_and_what_a_client_prepares_are_finite_and_in_the_agreed_shape(tmp_path):
    node = nodes.join(small(*FIRST, *LOCAL).model_dump_json(), "run", 1, ALONE)
    length = Preparation.length(node.task.features)
    for wrong in (torch.zeros(length), torch.full((length,), math.nan), torch.ones(length - 1)):
        with pytest.raises(ValueError, match="preparation"):
            node.prepare(wrong.double())
    assert node.task.preparation is None


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_a_contribution_on_prepared_features_weighs_no_more_than_the_scaled_clips_allow(scale):
    node = nodes.join(small(*FIRST).model_dump_json(), "run", 1, SITE)
    p, generator = node.task.features, torch.Generator().manual_seed(0)
    vector = torch.randn(Preparation.length(p), generator=generator, dtype=torch.float64) * 30
    vector[-1] = scale
    raw = node.task.clip
    node.prepare(vector)
    assert (node.task.clip.loss, node.task.clip.jacobian) == (scale * raw.loss, scale * raw.jacobian)
    theta = torch.randn(node.task.parameters, generator=generator, dtype=torch.float64)
    batch, outputs = node.forward(theta, node.records, 1, 0)
    q = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    found, _ = node.task.clipped.contribution(batch, q, 0.01)
    most = scale * (raw.jacobian * float(q.norm(dim=1).sum()) + len(q) * 0.01 * raw.loss)
    assert 0 < float(torch.linalg.vector_norm(found)) <= most * (1 + 1e-6)


def test_a_released_model_answers_for_raw_features_as_the_trained_one_for_prepared_ones(tmp_path):
    chosen = small(*FIRST, "seed=2", "training.precision=float64")
    Federation(tmp_path).run(chosen, directory=tmp_path / "run")
    node = nodes.join(chosen.model_dump_json(), "run", 7, SITE)
    raw = node.task
    vector = torch.randn(Preparation.length(raw.features), dtype=torch.float64)
    vector[-1] = 2.0
    node.prepare(vector)
    theta = torch.randn(raw.parameters, dtype=torch.float64)
    there = node.task.prepared(node.task.build_model(), theta)(node.task.inputs(node.records))
    folded = raw.prepared(raw.build_model(), unprepared(node.task, theta))(raw.inputs(node.records))
    assert torch.allclose(there, folded, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda steps: steps + 1, "its moments are none of its records"),
        (lambda steps: 3 * steps, "its moments are none of its records"),
        (lambda steps: steps[:, 1:], "unreadable answer"),
        (lambda steps: -steps, "its moments are none of its records"),
    ],
)
def test_sums_that_records_cannot_make_are_refused_and_never_quoted(federation, caplog, change, reason):
    def after(message, reply):
        if message.metadata.message_type == MOMENTS.kind and message.metadata.dst_node_id == 1001:
            reply.content["arrays"]["steps"] = array(
                np.ascontiguousarray(change(numbers(reply.content["arrays"]["steps"])))
            )
        return reply

    chosen = small(*FIRST, "federation.max_attempts=1")
    with pytest.raises(FederationError):
        federation.run(chosen, app=Saboteur(after=after))
    assert reason in caplog.text and not (federation.folder / "run1" / "moments.json").exists()


def test_a_client_gives_exact_moments_to_no_server_that_it_does_not_trust(federation):
    refused, chosen = [], small(*FIRST, *LOCAL)
    asked = encode(
        MOMENTS.down(round=0, attempt=0, asked=torch.ones(1).long()), Terms.of(Problem.from_experiment(chosen), S=1)
    )

    def hook(message, context):
        if message.metadata.message_type == NOISY_MOMENTS.kind:
            message.metadata.message_type, message.content = MOMENTS.kind, asked

    def after(message, reply):
        if message.metadata.message_type == MOMENTS.kind:
            refused.append(reply.has_error() and "belongs to trust" in reply.error.reason)
        return reply

    with pytest.raises(FederationError):
        federation.run(chosen, app=Saboteur(hook, after))
    assert len(refused) == 3 and all(refused)


def test_a_client_answers_nothing_about_moments_in_a_run_that_releases_none():
    node = nodes.join(small().model_dump_json(), "run", 1, SITE)
    with pytest.raises(RuntimeError, match="agreed to a run that releases none"):
        MomentSum(node.task)


def test_a_client_that_is_asked_again_and_again_never_exceeds_its_epsilon(tmp_path):
    node = nodes.join(small(*FIRST, *LOCAL).model_dump_json(), "run", 1, ALONE)
    place = tmp_path / "client-0.sqlite"
    summed(MomentSum(node.task), node, place, 0, 0, 600)
    with pytest.raises(AlreadySpent):
        summed(MomentSum(node.task), node, place, 0, 0, 600)
    with pytest.raises(BudgetExhausted):
        for attempt in range(1, 9):
            summed(MomentSum(node.task), node, place, 0, attempt, 600)
    assert rows_of(place)[1] <= 1.0 + 1e-9


def test_a_client_releases_no_kind_of_thing_more_often_than_was_planned(tmp_path):
    """Else a server would choose, by the first moments, between more of them and rounds: each fits, the choice not."""
    node = nodes.join(small(*FIRST, *LOCAL, "training.rounds=3").model_dump_json(), "run", 1, ALONE)
    place = tmp_path / "client-0.sqlite"
    summed(MomentSum(node.task), node, place, 0, 0, 600)
    with pytest.raises(BudgetExhausted, match="not for this, or not once more"):
        summed(MomentSum(node.task), node, place, 0, 1, 600)
    other = tmp_path / "other" / "client-0.sqlite"
    for round_ in (1, 2, 3):
        _table(node, other, round_)
    with pytest.raises(BudgetExhausted, match="not for this, or not once more"):
        _table(node, other, 4)  # in place of the moments, which were never asked for
    summed(MomentSum(node.task), node, other, 0, 0, 600)
    assert [{entry.round for entry in rows_of(each)[0]} for each in (place, other)] == [{0}, {0, 1, 2, 3}]


def _table(node, place, round_: int):
    own = split.own_batch(node.sizes, node.task.experiment.training.batch_fraction)
    return releases.table(node, place, flatten(node.model), Request(round_, 0, own, 600), {})


def test_a_choice_between_more_moments_and_rounds_would_show_more_than_delta():
    """Exactly: after the first moments the worst of two more and two rounds, one more and nine, or all twenty."""
    epsilon, delta, rounds = 4.0, 1e-5, 20
    first = noise_multiplier(epsilon, delta, sampling_rate=1.0, steps=1) / math.sqrt(0.3)
    moments = Step(1.0, 1 / first)
    own = noise_multiplier(epsilon, delta, sampling_rate=0.01, steps=rounds, beside={moments: 1})
    courses = [
        added({moments: more} if more else {}, {Step(0.01, 1 / own): r}) for more, r in ((0, 20), (1, 9), (2, 2))
    ]
    for course in courses:
        assert epsilon_by("pld", added({moments: 1}, course), delta) <= epsilon
        assert chosen_as_one_goes(moments, [one_of([course])], epsilon) <= delta
    assert chosen_as_one_goes(moments, [one_of([course]) for course in courses], epsilon) > 1.1 * delta


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_the_account_sets_aside_moments_and_rounds_and_counts_both(federation, trust):
    name = f"moments-{len(trust)}"
    summary = federation.run(small(*FIRST, *trust, f"data.account={name}"))
    own = name if not trust else f"{name}.client-0"
    state = DatasetAccount(accounts_folder(), own).state()
    (run,) = state.runs.values()
    assert sum(run.steps.values()) == 5 and state.spent(1e-5) == pytest.approx(summary["epsilon"], rel=0.02)


@pytest.mark.parametrize("trust", [(), LOCAL])
def test_a_limit_that_the_rounds_alone_would_fit_refuses_the_run_before_anything_is_spent(federation, trust):
    name = f"limited-moments-{len(trust)}"
    for own in [name] if not trust else [f"{name}.client-{number}" for number in range(3)]:
        DatasetAccount(accounts_folder(), own).limit(0.97, 1e-5)
    with pytest.raises((LimitReached, FederationError), match="would reach epsilon"):
        federation.run(small(*FIRST, *trust, f"data.account={name}"))
    assert not list(federation.folder.rglob("*.sqlite"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("privacy.trust=local-slices", "objective.task=generation"), "experiment"),
        (
            ("model.kind=encoder-decoder", "objective.task=representation", "model.hidden=[4]"),
            "set privacy.moments to 0",
        ),
    ],
)
def test_moments_that_nothing_could_use_are_refused_at_load_time(federation, changes, reason):
    with pytest.raises((ExperimentError, FederationError), match=reason):
        federation.run(small(*FIRST, *changes))
    assert not list(federation.folder.glob("run1/ledger.sqlite"))


class _Off(Exception):
    """The machine is switched off."""


class _OffBeforeRounds(NoObserver):
    def started(self, plan):
        raise _Off


def _off(*_, **__):
    raise _Off


@pytest.mark.parametrize("where", ["before its moments", "once they are charged", "before it stops", "twice"])
def test_a_run_that_is_to_stop_after_its_moments_stops_there_wherever_it_broke_off(tmp_path, monkeypatch, where):
    """Else going on with it spends what nobody agreed to spend: the whole budget."""
    breaks = {"once they are charged": (releases_once, "write_json"), "before it stops": (RunDirectory, "write_model")}
    observer = NoObserver() if where in breaks else _OffBeforeRounds()
    with monkeypatch.context() as patch, pytest.raises(_Off):
        if where in breaks:
            patch.setattr(*breaks[where], _off)
        run(small(*FIRST, "objective.alpha=0"), runs=tmp_path, moments_alone=True, observer=observer)
    (folder,) = (tmp_path / "small").iterdir()
    if where == "twice":
        with pytest.raises(_Off):
            resume(folder, observer=observer)
    stopped = resume(folder).summary
    assert stopped["status"].startswith("stopped after moments") and stopped["released_rounds"] == 0
    times = 2 if where == "once they are charged" else 1
    charged = {(entry.round, entry.attempt) for entry in rows_of(folder / "ledger.sqlite")[0]}
    assert charged == {(0, attempt) for attempt in range(times)}
    ended = resume(folder).summary
    assert ended["status"].startswith("completed" if times == 1 else "stopped before round")
    assert stopped["epsilon_spent"] < ended["epsilon_spent"] <= ended["epsilon"]
