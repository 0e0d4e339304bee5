"""Laws of runs whose records leave once, as a sum: what is added, charged, noised, stored, and learnt from."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from fedsw._tools.settings import FederationError
from fedsw.audit.record import audit
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation import messages
from fedsw.federation.messages import trusts_of
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.federation.server.from_sketch import restarts_of, settings_of
from fedsw.federation.trust.sketch.sketch_once import SketchSum, sketch_budget
from fedsw.learning.models.labelled import VectorGenerator
from fedsw.learning.sketches.fit import CheckpointRefused, fit_generator
from fedsw.learning.sketches.from_settings import FIRST
from fedsw.learning.sketches.noised import bits_per_number
from fedsw.learning.sketches.sketch_law import STEP
from fedsw.learning.tasks.measures import law_of_problem
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import stored_sketch
from fedsw.runs.run_files import RunFile
from tests.audit.record.test_record import failed
from tests.federation.node.releases import summed
from tests.federation.sketch_runs import LOCAL, NOISELESS, SKETCH, exact, sketched
from tests.federations import Federation, Saboteur, array, numbers, small
from tests.noises import require_gaussian

MADE = VectorGenerator(2, 5, hidden=(8,), latent=2)


def stored(experiment, directory):
    found = stored_sketch(RunDirectory(directory), law_of_problem(Problem.from_experiment(experiment)))
    assert found is not None
    return found


def entries(path):
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.entries()


@pytest.mark.parametrize("spread", [(), ("federation.sites=1",), ("federation.sites=2",), ("federation.clients=7",)])
def test_without_noise_the_sketch_of_a_federation_is_the_sum_of_all_records_exactly(federation, spread):
    chosen = sketched(NOISELESS, *spread)
    summary = federation.run(chosen)
    found = stored(chosen, federation.folder / "run1")
    assert torch.equal(found.sketch.value, exact(chosen)) and found.sketch.sigma == 0 and found.sketch.records == 600
    assert summary["epsilon"] == math.inf and summary["guarantee"]["statement"].startswith("No privacy")


@pytest.mark.parametrize("trust", [(), (LOCAL,)])
def test_what_is_added_to_the_exact_sum_is_noise_of_the_planned_scale_in_every_number(federation, trust):
    chosen = sketched(*trust, "sketch.pairs=40")
    truth, added = exact(chosen), []
    budget = sketch_budget(chosen, law_of_problem(Problem.from_experiment(chosen)), 1e-5)
    sigma = budget.sigma * (math.sqrt(3) if trust else 1)
    for name in ("one", "two"):
        summary = federation.run(chosen, directory=federation.folder / name)
        found = stored(chosen, federation.folder / name).sketch
        assert found.sigma == pytest.approx(sigma, rel=1e-9) and summary["sketch"]["sigma"] == found.sigma
        added.append((found.value - truth).reshape(-1))
    require_gaussian(torch.stack(added), sigma)


@pytest.mark.parametrize("seed", [(), ("seed=5",)])
@pytest.mark.parametrize("sites", ["federation.sites=1", "federation.sites=3"])
def test_every_client_has_noise_of_its_own(federation, seed, sites):
    chosen = sketched(LOCAL, sites, *seed, "training.rounds=1")
    federation.run(chosen)
    releases = [load_file(federation.folder / f"run1/releases/client-{number}.safetensors") for number in range(3)]
    added = torch.stack([(own["noised"] - _own(chosen, number)).reshape(-1) for number, own in enumerate(releases)])
    require_gaussian(added, float(releases[0]["sigma"]))


def _own(experiment, number: int):
    """The exact sum of one client's records."""
    task = Problem.from_experiment(experiment)
    return exact(experiment, held_records(task, {"partition-id": number, "num-partitions": 3}).records)


def test_one_release_is_charged_whole_before_it_leaves_and_the_run_says_so(federation):
    summary = federation.run(sketched())
    (entry,) = entries(federation.folder / "run1" / "ledger.sqlite")
    multiplier = summary["guarantee"]["noise_multiplier"]
    assert entry.sampling_rate == 1.0 and entry.sigma == pytest.approx(multiplier * entry.sensitivity)
    assert entry.sensitivity == pytest.approx(2.002) and summary["released_rounds"] == 1
    assert summary["epsilon_spent"] <= 5.0 + 1e-9 and summary["epsilon_spent"] == pytest.approx(5.0, rel=1e-3)
    assert summary["guarantee"]["relation"] == "replace-one, label and group included"
    assert "label and group included) of the one release" in summary["guarantee"]["statement"]
    assert "server and clients are trusted" in summary["guarantee"]["against"]


def test_where_nobody_is_trusted_every_client_charges_its_own_ledger_once(federation):
    summary = federation.run(sketched(LOCAL))
    for number in range(3):
        (entry,) = entries(federation.folder / "run1" / "clients" / f"client-{number}.sqlite")
        assert (entry.sampling_rate, entry.group) == (1.0, "records")
    assert not (federation.folder / "run1" / "ledger.sqlite").exists()
    assert set(summary["epsilon_spent_by_client"]) == {"0", "1", "2"} and summary["epsilon_spent"] <= 5.0 + 1e-9
    assert summary["guarantee"]["against"] == "everyone, including the server and the other clients"


def test_a_client_that_is_asked_twice_refuses_and_is_charged_once(tmp_path):
    task = Problem.from_experiment(sketched(LOCAL))
    node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 3}), "run")
    place = tmp_path / "client-0.sqlite"
    first = summed(SketchSum(task, FIRST), node, place, 1, 0, 600)
    assert first.value.shape == (5, 25) and first.spent <= 5.0 + 1e-9
    for _ in range(2):
        with pytest.raises((BudgetExhausted, ValueError)):
            summed(SketchSum(task, FIRST), node, place, 1, 0, 600)
    assert len(entries(place)) == 1


@pytest.mark.parametrize("sites", [(), ("federation.sites=1",)])
def test_who_does_not_answer_is_missing_and_can_be_added_when_the_run_goes_on(tmp_path, sites):
    federation, chosen = Federation(tmp_path), sketched(LOCAL, "federation.min_clients=2", *sites)
    directory = tmp_path / "run"

    def after(message, reply):
        if message.metadata.message_type == "train.sketch":
            if sites:
                for name in [name for name in reply.content if name.startswith("1/")]:
                    del reply.content[name]
            elif message.metadata.dst_node_id == 1001:
                raise OSError("gone")
        return reply

    summary = federation.run(chosen, directory=directory, app=Saboteur(after=after))
    few = stored(chosen, directory)
    assert summary["sketch"]["clients"] == few.clients == 2 and few.sketch.records == 400
    assert summary["status"] == "completed" and summary["epsilon"] == pytest.approx(5.0)
    # The lost client was charged: what it released was lost on its way, and it releases nothing more.
    federation.run(chosen, directory=directory, resume=True)
    assert stored(chosen, directory).clients == 2 and len(entries(directory / "clients" / "client-1.sqlite")) == 1


def test_a_late_client_is_added_and_the_generator_learns_from_all_of_them(tmp_path):
    federation, chosen = Federation(tmp_path), sketched(LOCAL, "federation.min_clients=2")
    directory, away = tmp_path / "run", [True]

    def hook(message, context):
        if message.metadata.message_type == "train.sketch" and int(context.node_config["partition-id"]) == 2 and away:
            raise OSError("not yet")

    federation.run(chosen, directory=directory, app=Saboteur(hook))
    before, model = stored(chosen, directory), load_file(directory / "model.safetensors")
    away.clear()
    summary = federation.run(chosen, directory=directory, resume=True, app=Saboteur(hook))
    now = stored(chosen, directory)
    assert (before.clients, now.clients) == (2, 3) and now.sketch.records == 600
    assert summary["sketch"]["records"] == 600 and summary["epsilon"] == pytest.approx(5.0)
    assert now.sketch.sigma == pytest.approx(before.sketch.sigma * math.sqrt(3 / 2))
    assert all(len(entries(directory / "clients" / f"client-{c}.sqlite")) == 1 for c in range(3))
    again = load_file(directory / "model.safetensors")
    assert any(not torch.equal(value, again[name]) for name, value in model.items())
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    assert [line["round"] for line in lines] == [3, 6] and {line["clients"] for line in lines} == {3}


def test_under_a_trusted_server_who_is_lost_is_not_in_the_sum_and_the_guarantee_stays(tmp_path):
    chosen = sketched(NOISELESS, "federation.clients=4", "federation.min_clients=1", "federation.drop_out=0.5")
    found = []
    for sites in ("federation.sites=1", "federation.sites=4"):
        Federation(tmp_path / sites).run(sketched(*_said(chosen), sites), directory=tmp_path / sites)
        found.append(stored(chosen, tmp_path / sites))
    assert torch.equal(found[0].sketch.value, found[1].sketch.value)
    assert found[0].clients == found[1].clients < 4 and found[0].sketch.records == 150 * found[0].clients
    counts = found[0].sketch.counts
    assert float(counts.sum()) == pytest.approx(found[0].sketch.records)


def _said(chosen):
    federation = chosen.federation
    return (
        NOISELESS,
        f"federation.clients={federation.clients}",
        f"federation.min_clients={federation.min_clients}",
        f"federation.drop_out={federation.drop_out}",
    )


def test_with_too_few_sums_nothing_is_charged_and_the_run_can_go_on(tmp_path):
    directory, away = tmp_path / "run", [True]

    def hook(message, context):
        if message.metadata.message_type == "train.records_sum" and away:
            raise OSError("gone")

    app, chosen = Saboteur(hook), sketched("federation.max_attempts=1")
    with pytest.raises(FederationError):
        Federation(tmp_path).run(chosen, directory=directory, app=app)
    assert entries(directory / "ledger.sqlite") == []
    away.clear()
    summary = Federation(tmp_path).run(chosen, directory=directory, app=app, resume=True)
    assert summary["status"] == "completed" and len(entries(directory / "ledger.sqlite")) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda steps: steps + 1, "its sum is none of 200 records"),
        (lambda steps: 3 * steps, "its sum is none of 200 records"),
        (lambda steps: steps[:, 1:], "unreadable answer"),
        (lambda steps: steps.astype("float64"), "unreadable answer"),
    ],
)
def test_a_sum_that_its_records_cannot_make_is_refused_and_never_quoted(federation, change, reason):
    def after(message, reply):
        if message.metadata.message_type == "train.records_sum" and message.metadata.dst_node_id == 1001:
            reply.content["arrays"]["steps"] = array(change(numbers(reply.content["arrays"]["steps"])))
        return reply

    with pytest.raises(FederationError, match=reason) as refused:
        federation.run(sketched("federation.max_attempts=1"), app=Saboteur(after=after))
    assert "weighs" not in str(refused.value)
    assert entries(federation.folder / "run1" / "ledger.sqlite") == []


@pytest.mark.parametrize("field", ["noised", "sigma"])
def test_a_noised_sketch_that_is_malformed_is_refused_and_its_cost_is_remembered(federation, field):
    def after(message, reply):
        if message.metadata.message_type == "train.sketch" and message.metadata.dst_node_id == 1001:
            if field == "noised":
                reply.content["arrays"]["noised"] = array(numbers(reply.content["arrays"]["noised"])[:, 1:])
            else:
                reply.content["metrics"]["sigma"] = -1.0
        return reply

    summary = federation.run(sketched(LOCAL, "federation.min_clients=2"), app=Saboteur(after=after))
    assert summary["sketch"]["clients"] == 2 and set(summary["epsilon_spent_by_client"]) == {"0", "1", "2"}


def test_the_sum_on_the_wire_is_whole_steps_within_the_stated_bits_and_the_bytes_are_counted(federation):
    found = []

    def after(message, reply):
        if message.metadata.message_type == "train.records_sum":
            found.append(numbers(reply.content["arrays"]["steps"]))
        return reply

    chosen = sketched(NOISELESS)
    summary = federation.run(chosen, app=Saboteur(after=after))
    law = law_of_problem(Problem.from_experiment(chosen))
    assert [each.dtype.name for each in found] == ["int64"] * 3
    bits = bits_per_number(law, 200)
    assert (
        max(int(abs(each).max()) for each in found) < 2 ** (bits - 1) and summary["sketch"]["bits_per_number"] >= bits
    )
    total = torch.from_numpy(sum(found)).double() * STEP
    assert torch.equal(total, exact(chosen))
    assert max(int(abs(sum(found)).max()), 0) < 2 ** (summary["sketch"]["bits_per_number"] - 1)
    assert summary["bytes_up"] < 3 * (8 * law.cells * 25 + 200) + 200


@pytest.mark.parametrize("trust", [(), (LOCAL,)])
def test_the_generator_of_a_federation_is_that_of_one_machine_for_the_same_sketch(federation, trust):
    chosen = sketched(*trust)
    federation.run(chosen)
    task, directory = Problem.from_experiment(chosen), federation.folder / "run1"
    network = fit_generator(stored(chosen, directory).sketch, task.build_model(), settings_of(task))
    released = load_file(directory / "model.safetensors")
    assert set(released) == set(network.state_dict()) and "proportions" in released
    assert any("running_mean" in name for name in released), "buffers are released too"
    for name, value in network.state_dict().items():
        assert torch.equal(value, released[name]), name


def test_a_training_that_breaks_off_goes_on_from_its_checkpoint_and_asks_nobody_again(tmp_path):
    chosen, directory = sketched(), tmp_path / "run"

    class Breaks:
        def started(self, plan):
            pass

        def round_done(self, record):
            raise RuntimeError("enough")

        def finished(self, summary):
            pass

    with pytest.raises(RuntimeError, match="enough"):
        Federation(tmp_path).run(chosen, directory=directory, observer=Breaks())
    asked = []
    app = Saboteur(lambda message, context: asked.append(message.metadata.message_type))
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True, app=app)
    assert summary["status"] == "completed" and set(asked) == {"query.hello"}
    assert len(entries(directory / "ledger.sqlite")) == 1
    whole = Federation(tmp_path)
    task = Problem.from_experiment(chosen)
    network = fit_generator(stored(chosen, directory).sketch, task.build_model(), settings_of(task))
    released = load_file(directory / "model.safetensors")
    assert all(torch.equal(value, released[name]) for name, value in network.state_dict().items())
    lines = [json.loads(line)["round"] for line in (directory / "metrics.jsonl").open()]
    assert lines == [3, 6] and whole.runs == 0


@pytest.mark.parametrize("trust", [(), (LOCAL,)])
def test_restarts_are_chosen_by_the_sketch_and_change_no_message_and_no_charge(tmp_path, trust):
    chosen, asked = sketched(*trust, "training.rounds=8", "seed=3", "sketch.restarts=3"), []
    app = Saboteur(lambda message, context: asked.append(message.metadata.message_type))
    plain, directory = tmp_path / "plain", tmp_path / "run"
    alone = Federation(tmp_path).run(sketched(*trust, "training.rounds=8", "seed=3"), directory=plain, app=app)
    before = list(asked)
    summary = Federation(tmp_path).run(chosen, directory=directory, app=app)
    assert asked[len(before) :] == before
    places = sorted(plain.rglob("*.sqlite"))
    for place in places:
        one, other = (entries(folder / place.relative_to(plain)) for folder in (plain, directory))
        assert [(row.round, row.sigma, row.sensitivity) for row in one] == [
            (row.round, row.sigma, row.sensitivity) for row in other
        ]
    assert places and summary["epsilon_spent"] == alone["epsilon_spent"] and "restarts" not in alone["sketch"]
    said = summary["sketch"]["restarts"]
    assert len(said["distances"]) == 3 and said["distances"][said["taken"] - 1] == min(said["distances"])
    task, seed = Problem.from_experiment(chosen), said["taken"] - 1
    network = [task.build_model(), *restarts_of(task)][seed]
    fit_generator(stored(chosen, directory).sketch, network, settings_of(task))
    released = load_file(directory / "model.safetensors")
    assert all(torch.equal(value, released[name]) for name, value in network.state_dict().items())
    assert failed(audit(directory)) == []
    (directory / "model.safetensors").unlink()
    again = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert again["sketch"]["restarts"] == said
    assert all(torch.equal(value, released[name]) for name, value in load_file(directory / "model.safetensors").items())


def test_restarts_that_nothing_would_tell_apart_are_refused_before_anything_is_spent(tmp_path):
    chosen, directory = parse_experiment({**SKETCH, "model": {"kind": f"{__name__}:MADE"}}), tmp_path / "run"
    with pytest.raises(ExperimentError, match="the same weights under every model.seed"):
        Federation(tmp_path).run(parse_experiment(chosen.model_dump(), ("sketch.restarts=2",)), directory=directory)
    assert not (directory / "sketch.safetensors").exists() and not (directory / "ledger.sqlite").exists()


def test_a_damaged_checkpoint_of_the_generator_is_named(tmp_path):
    chosen, directory = sketched(), tmp_path / "run"
    Federation(tmp_path).run(chosen, directory=directory)
    path = directory / RunFile.GENERATOR
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointRefused, match="damaged"):
        Federation(tmp_path).run(chosen, directory=directory, resume=True)


def test_labels_and_groups_are_blocks_of_the_sketch_where_they_are_asked_for(federation):
    for settings, cells in ((("sketch.labels=false",), 1), ((), 5), (("sketch.groups=true",), 5)):
        chosen = sketched(NOISELESS, *settings)
        summary = federation.run(chosen)
        assert summary["sketch"]["cells"] == cells
        assert ("accuracy" in summary["held_out"]) == (cells > 1) and "sw2" in summary["held_out"]


def test_a_message_of_a_sketch_belongs_to_its_own_trust_model(tmp_path):
    for trust, kind in ((LOCAL, messages.RECORDS_SUM), ("privacy.trust=sketch", messages.SKETCH)):
        assert sketched(trust).privacy.trust not in trusts_of(kind)
    assert messages.SKETCH.kind != messages.RECORDS_SUM.kind


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((LOCAL, NOISELESS), "would send sums of records as they are"),
        (("privacy.trust=central",), "use|can: 'distributed', 'sketch' or 'sketch-local'"),
        (("objective.task=generation",), "synthesis|generator"),
        (("training.batch_size=10",), "task 'synthesis' does not read"),
        (("privacy.sampling=stratified",), "sums all records once"),
        (("model.kind=image-generator", "model.hidden=[3]"), "two layers of channels"),
        (("model.kind=generator",), "'image-generator', 'residual-generator' or 'table-generator'"),
        (("sketch.harmonics=3",), "harmonics is for kind 'cramer'"),
        (("sketch.decay=1.0",), "decay is for map 'cosine'"),
        (("sketch.orientations=3",), "orientations is for map 'scattering'"),
        (("sketch.pairs=1",), "pairs is 1 for 2 bandwidths"),
        (("sketch.kind=code", "sketch.bandwidths=[0.7,1.2,2.0,3.5]", "sketch.pairs=600"), "name them in columns"),
        (("sketch.counts=5.0",), "less than or equal to 4"),
        (("sketch.restarts=0",), "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_go_together_say_what_would(settings, words):
    with pytest.raises(ExperimentError, match=words):
        sketched(*settings)


def test_a_sketch_section_without_a_sketch_is_refused():
    with pytest.raises(
        ExperimentError,
        match="pairs is 10, which has no meaning under privacy.trust 'central'",
    ):
        small("sketch.pairs=10")


@pytest.mark.parametrize(
    "settings",
    [
        ("sketch.map=cosine",),
        ("sketch.map=convolutions",),
        ("sketch.map=scattering",),
        ("model.kind=image-generator",),
        ("sketch.also=[{columns=[2]}]",),
    ],
)
def test_what_does_not_fit_the_records_is_refused_before_anything_is_spent(settings):
    with pytest.raises(ExperimentError):
        Problem.from_experiment(sketched(*settings))


def test_several_parts_and_the_cramer_distance_are_sketched_too(federation):
    cramer = "{kind='cramer', directions=3, harmonics=2, columns=[0], weight=0.5}"
    chosen = sketched(NOISELESS, f"sketch.also=[{cramer}, {{kind='features'}}, {{kind='moments', radius=3.0}}]")
    summary = federation.run(chosen)
    assert summary["sketch"]["coordinates"] == 2 * 12 + 2 * 6 + 2 * 2 + 6
    assert torch.equal(stored(chosen, federation.folder / "run1").sketch.value, exact(chosen))


def test_a_generator_of_images_learns_through_the_scattering_map(federation):
    scattering = ("sketch.map=scattering", "sketch.scales=2", "sketch.orientations=2", "sketch.order=2")
    images = ("model.kind=image-generator", "model.hidden=[8,4]", "sketch.bandwidths=[1.0,3.0]", "training.rounds=30")
    chosen = parse_experiment({**SKETCH, "data": {"source": "digits"}}, (NOISELESS, *images, *scattering))
    summary = federation.run(chosen)
    assert torch.equal(stored(chosen, federation.folder / "run1").sketch.value, exact(chosen))
    lines = [json.loads(line) for line in (federation.folder / "run1" / "metrics.jsonl").read_text().splitlines()]
    distances = [line["distance"] for line in lines if "distance" in line]
    assert summary["sketch"]["coordinates"] == 2 * 12 and distances[-1] < 0.7 * distances[0]
