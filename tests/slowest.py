"""The twenty tests that take longest, and what each guards: a table of the site's page about contributing.

    python -m tests.slowest

Seconds are of the slow stage with three workers on two cores: they say where time goes, not how fast anything is.
"""

from __future__ import annotations

SLOWEST = (
    (
        "papers/test_quick",
        "every_figure_is_made_at_its_smallest_size_from_an_empty_folder",
        351,
        "every figure of the papers can be made",
    ),
    ("packaging/test_newest_flower", "every_engine_runs_on_the_newest_flower_that_is_allowed", 185, "Flower's range"),
    ("packaging/test_recipes", "with_all_recipes_applied_quick_tests_pass", 163, "recipes, followed, break nothing"),
    (
        "laws/simulations/test_chaos_deployed",
        "forty_rounds_on_real_processes_survive_the_death_of_nodes_server_app_and_superlink",
        126,
        "ledgers through kills of every process",
    ),
    (
        "federation/engines/test_deployed_hosts",
        "hosts_with_addresses_of_their_own_run_every_trust_model_and_charge_what_they_release",
        114,
        "hosts with addresses, names and files of their own",
    ),
    (
        "site/test_documented_commands_run",
        "no_documented_command_ends_in_a_traceback_on_a_fresh_machine",
        105,
        "the pages' commands on a fresh machine",
    ),
    (
        "laws/simulations/test_stock_apps",
        "the_template_and_masked_updates_run_with_one_ledger_a_node",
        88,
        "Flower apps of others, one ledger a node",
    ),
    ("site/test_site", "no_page_script_or_style_fetches_anything", 66, "the site builds, notebooks run"),
    (
        "federation/engines/test_inprocess_ray",
        "a_node_that_dies_ends_the_run_by_name_and_the_nodes_that_are_left_go_on_with_it",
        65,
        "a cluster that loses a node",
    ),
    (
        "laws/simulations/test_every_statement",
        "statements_that_fail_after_the_first_charge_harm_nothing",
        65,
        "files and charges, whatever statement fails",
    ),
    (
        "laws/simulations/test_stock_bytes",
        "flower_s_store_takes_as_many_bytes_of_a_client_without_records_in_the_batch",
        64,
        "sizes tell no batch",
    ),
    (
        "laws/attacks/test_federation_attack",
        "the_released_model_shows_at_most_epsilon_unless_the_noise_is_too_small",
        60,
        "an attack on whole runs",
    ),
    (
        "packaging/test_many_machines",
        "a_simulation_on_two_nodes_of_a_cluster_runs_by_its_batch_script",
        57,
        "the batch script of deploy/",
    ),
    (
        "federation/engines/test_deployed",
        "server_and_clients_that_are_started_apart_find_each_other_and_outlive_a_run",
        56,
        "server and clients on machines of their own",
    ),
    (
        "federation/test_engines_agree",
        "a_client_that_moves_between_processes_rebuilds_its_secret_batch",
        52,
        "a secret batch follows its client",
    ),
    (
        "packaging/test_wheel",
        "nothing_of_the_checkout_is_found_but_what_the_wheel_brought",
        50,
        "an installed package is whole",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "a_run_of_masked_sums_ends_though_sites_are_killed_and_every_ledger_says_the_same",
        46,
        "masked sums through kills",
    ),
    (
        "benchmarks/test_performance",
        "every_part_that_a_gpu_is_measured_on_runs_on_a_processor_in_its_place",
        44,
        "benchmarks of a GPU, on a processor",
    ),
    (
        "federation/test_engines_agree",
        "flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running",
        43,
        "Flower's engines end with the same bits",
    ),
    (
        "federation/engines/test_deployed",
        "a_node_that_stands_still_for_half_a_minute_ends_no_run",
        43,
        "a stall longer than Flower's lease",
    ),
)
"""Below tests/: file, test, seconds (of its longest case), and what it guards."""


def table() -> str:
    """A row for each."""
    rows = [
        f"| `tests/{file}.py` | {name.replace('_', ' ')} | {seconds} | {guards} |"
        for file, name, seconds, guards in SLOWEST
    ]
    return "\n".join(["| file | test | s | guards |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
