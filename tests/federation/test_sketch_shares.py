"""Laws of the shares that a sketch's stages get of the budget where rules choose them: by public sizes, all of it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.audit.record import audit
from fedsw.cli.app import main
from fedsw.desk.planning.run_plan import planned, rows
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.preset_rules import left_open, require_settled
from fedsw.federation.server.settling import settled
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.noised import least_noise_shares, sketch_sensitivity
from fedsw.learning.sketches.parts import Features, MomentFeatures, PartOfSketch
from fedsw.learning.sketches.sketch_law import Law
from fedsw.privacy.accounting import Ledger
from fedsw.runs.directory import RunDirectory
from tests.audit.record.test_record import failed
from tests.desk.own_data.test_synthetic_table import OWN
from tests.federation.distributed.sites import masked
from tests.federation.sketch_runs import LOCAL, sketched

AUTO = "sketch.stages=[{share='auto'}, {share='auto', parts=[{kind='moments', map='learnt', radius=3.0}]}]"
SMALL = ("sketch.hidden=5", "training.rounds=2")
TABLE = {
    "name": "own",
    "data": {
        "source": "object",
        "columns": {
            "features": [{"name": "abc"[k], "categories": list("uvwxyz"[: 2 * k + 2])} for k in range(3)],
            "sensitive": {"name": "sex", "values": ["f", "m"]},
            "target": {"name": "y", "values": ["no", "yes"]},
        },
    },
    "objective": {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0},
    "model": {"kind": "table-generator", "hidden": [8], "latent": 2},
    "sketch": {"kind": "table", "stages": [{"share": "auto", "tables": 2}]},
    "privacy": {"trust": "sketch", "epsilon": 2.0, "delta": 1e-6},
    "federation": {"clients": 1},
}


def kernel(pairs: int, weight: float = 1.0) -> PartOfSketch:
    return GaussianKernel((1.0,), pairs, weight=weight)


PARTS = st.one_of(
    st.builds(kernel, st.integers(1, 12), st.floats(0.1, 5)),
    st.builds(lambda weight: Features(weight=weight), st.floats(0.1, 5)),
    st.builds(lambda weight: MomentFeatures(weight=weight), st.floats(0.1, 5)),
)
STAGES = st.lists(st.lists(PARTS, min_size=1, max_size=3), min_size=2, max_size=4)


def law(*parts: PartOfSketch) -> Law:
    return Law(6, parts, classes=1)


def shares_of(*laws: Law) -> tuple[float, ...]:
    return least_noise_shares([each.drawn(torch.float64) for each in laws])


def noise_over_signal(laws: list[Law], shares: tuple[float, ...]) -> float:
    """Of the mean of every part, by a loop over all numbers; the budget, the records and the cells are factors."""
    total = 0.0
    for each, share in zip(laws, shares, strict=True):
        deviation = sketch_sensitivity(each).value / math.sqrt(share)
        for part, weight in zip(each.drawn(torch.float64).parts, each.weights, strict=True):
            total += sum(deviation**2 / weight for _ in range(part.coordinates))
    return total


@given(STAGES, st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
@settings(deadline=None, max_examples=15)
def test_no_other_shares_have_less_noise_over_signal_in_the_means_of_all_parts(stages, others):
    laws = [law(*parts) for parts in stages]
    chosen = shares_of(*laws)
    assert math.fsum(chosen) == pytest.approx(1, abs=1e-12) and min(chosen) > 0
    given_ = others[: len(laws)]
    other = tuple(each / sum(given_) for each in given_)
    assert noise_over_signal(laws, chosen) <= noise_over_signal(laws, other) * (1 + 1e-9)


def test_a_stage_gets_more_for_more_numbers_a_larger_bound_and_a_lighter_part_and_the_others_less():
    plain = shares_of(law(kernel(8)), law(kernel(8)))
    assert plain == pytest.approx((0.5, 0.5))
    wider = [shares_of(law(kernel(8)), law(kernel(pairs)))[1] for pairs in (2, 8, 32, 128)]
    assert wider == sorted(wider) and wider[1] == pytest.approx(0.5) and wider[2] == pytest.approx(2 / 3)
    farther, nearer = shares_of(law(kernel(3)), law(Features()))  # six numbers each, at most 2 and sqrt(2) apart
    assert farther / nearer == pytest.approx(math.sqrt(2), rel=1e-3)
    lighter = [shares_of(law(kernel(8)), law(kernel(8), kernel(8, weight)))[1] for weight in (1.0, 0.3, 0.1)]
    assert lighter == sorted(lighter) and lighter[0] > 0.5


def config_of(directory) -> Experiment:
    return RunDirectory(directory).read_config()[0]


@pytest.mark.parametrize("trust", [(), (LOCAL,), "masked"])
def test_chosen_shares_are_those_of_the_plan_the_ledgers_and_the_record_and_cost_what_was_asked_for(federation, trust):
    chosen = masked(*SMALL, AUTO) if trust == "masked" else sketched(*SMALL, AUTO, *trust)
    plan = planned(chosen, {"all": 600})
    summary, directory = federation.run(chosen), federation.folder / "run1"
    assert not left_open(config_of(directory)) and summary["status"] == "completed"
    shares = config_of(directory).sketch.shares
    assert [each.share for each in plan.stages] == pytest.approx(shares) and sum(shares) == pytest.approx(1)
    assert plan.multiplier == pytest.approx(summary["guarantee"]["noise_multiplier"], rel=1e-9)
    assert sum(each.mu**2 for each in plan.stages) == pytest.approx(plan.multiplier**-2, rel=1e-9)
    for path in [*directory.glob("ledger.sqlite"), *directory.glob("clients/client-*.sqlite")]:
        with Ledger.open(path, read_only=True) as ledger:
            charged, replayed = ledger.entries(), ledger.replay()
        for row, stage in zip(charged, plan.stages, strict=True):
            assert row.sigma / row.sensitivity == pytest.approx(stage.multiplier, rel=1e-6)
        assert replayed <= 5.0 * (1 + 1e-6) and replayed == pytest.approx(5.0, rel=2e-3)
    assert summary["epsilon_spent"] == pytest.approx(plan.epsilon, rel=2e-3) and failed(audit(directory)) == []
    said = dict(rows(plan))
    for number, share in enumerate(shares, start=1):
        assert said[f"stage {number}"].startswith(f"{100 * share:.3g} % of the budget")


def test_shares_depend_on_no_record_no_client_and_no_budget(federation):
    chosen = sketched(*SMALL, AUTO)
    others = sketched(*SMALL, AUTO, "data.seed=7", "data.records=900", "federation.clients=2", "privacy.epsilon=0.5")
    for each in (chosen, others):
        federation.run(each)
    found = [config_of(federation.folder / name).sketch.shares for name in ("run1", "run2")]
    assert found[0] == found[1] == settled(chosen).sketch.shares


def test_with_no_table_at_hand_more_tables_of_a_later_stage_get_more_of_the_budget():
    def share(tables: int) -> float:
        stages = [{"share": "auto", "tables": tables}]
        return settled(parse_experiment({**TABLE, "sketch": {"kind": "table", "stages": stages}})).sketch.shares[1]

    found = [share(tables) for tables in (1, 2, 4, 10, 50)]
    assert found == sorted(found) and found[0] < found[2]
    assert found[-1] < 0.5, "single columns are measured in the first stage alone"


def test_budget_and_plan_print_the_same_stages_from_a_number_of_records_alone(tmp_path, capsys):
    path, stages = tmp_path / "own.toml", 'sketch.stages=[{share="auto"}, {share="auto", tables=2}]'
    path.write_text(OWN.format(held_out=""))
    own = ["--records", "600"]
    assert main(["budget", str(path), *own, "--set", stages, "--epsilon", "3", "--delta", "1e-7", "--json"]) == 0
    budget = json.loads(capsys.readouterr().out)
    assert main(["plan", str(path), stages, "privacy.epsilon=3", "privacy.delta=1e-7", *own, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert budget["stages"] == plan["stages"] and len(budget["stages"]) == 3 and budget["epsilon"] == 3
    whole = sum(each["mu"] ** 2 for each in budget["stages"])
    assert whole == pytest.approx(budget["noise_multiplier"] ** -2, rel=1e-9)
    assert main(["budget", str(path), *own, "--set", stages]) == 0 and "stage 3" in capsys.readouterr().out
    for words, said in (
        (["budget", str(path), *own, "--steps", "3"], "--steps is for releases without"),
        (["budget", "adult", *own], "stages are a sketch's"),
        (["budget", "--set", "training.rounds=3"], "name one"),
    ):
        assert main(words) != 0 and said in " ".join(capsys.readouterr().err.split())


def test_open_shares_stay_open_through_json_and_settled_ones_are_settled():
    chosen = sketched(*SMALL, AUTO)
    assert left_open(Experiment.model_validate_json(chosen.model_dump_json())) == {"sketch": ("stages",)}
    ready = settled(chosen)
    assert left_open(ready) == {} and settled(ready) is ready
    assert Experiment.model_validate_json(ready.model_dump_json()) == ready


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        (("sketch.stages=[{share='auto'}, {share=0.2}]",), "write it for every stage, or for none"),
        (("sketch.stages=[{share='auto'}, {}]",), "write it for every stage, or for none"),
        ((AUTO, "privacy.epsilon=inf"), "there is no noise: leave share out"),
    ],
)
def test_shares_that_nothing_would_choose_are_refused(settings_, words):
    with pytest.raises(ExperimentError, match=words):
        sketched(*SMALL, *settings_)


def test_nobody_is_asked_for_a_record_while_shares_are_open():
    with pytest.raises(ExperimentError, match="nothing chose sketch.stages"):
        require_settled(sketched(*SMALL, AUTO))
