"""The twenty tests that take longest, and what each guards: a table of the site's page about contributing.

    python -m tests.slowest

Seconds are of the slow stage with four workers on two cores, with waits for other clusters of Ray: they say where time
goes, not how fast anything is.
"""

from __future__ import annotations

SLOWEST = (
    (
        "papers/test_quick",
        "every_figure_is_made_at_its_smallest_size_from_an_empty_folder",
        629,
        "every figure of the papers can be made",
    ),
    ("packaging/test_newest_flower", "every_engine_runs_on_the_newest_flower_that_is_allowed", 285, "Flower's range"),
    (
        "federation/test_engines_agree",
        "flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running",
        258,
        "Flower's engines end with the same bits",
    ),
    (
        "federation/distributed/test_masked_rounds",
        "on_ray_sites_have_masks_and_a_ledger_a_client",
        177,
        "masks and ledgers of sites on Ray",
    ),
    (
        "federation/engines/test_inprocess_ray",
        "a_node_that_dies_ends_the_run_by_name_and_the_nodes_that_are_left_go_on_with_it",
        150,
        "a cluster that loses a node",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "forty_rounds_on_real_processes_survive_the_death_of_nodes_server_app_and_superlink",
        134,
        "ledgers through kills of every process",
    ),
    ("packaging/test_recipes", "with_all_recipes_applied_quick_tests_pass", 127, "recipes, followed, break nothing"),
    (
        "federation/engines/test_deployed_hosts",
        "hosts_with_addresses_of_their_own_run_every_trust_model_and_charge_what_they_release",
        114,
        "hosts with addresses, names and files of their own",
    ),
    (
        "laws/simulations/test_stock_apps",
        "the_template_and_masked_updates_run_with_one_ledger_a_node",
        113,
        "Flower apps of others, one ledger a node",
    ),
    (
        "federation/test_engines_agree",
        "a_client_that_moves_between_processes_rebuilds_its_secret_batch",
        106,
        "a secret batch follows its client",
    ),
    (
        "laws/attacks/test_federation_attack",
        "the_released_model_shows_at_most_epsilon_unless_the_noise_is_too_small",
        97,
        "an attack on whole runs",
    ),
    ("site/test_site", "no_page_script_or_style_fetches_anything", 79, "the site builds, notebooks run"),
    (
        "packaging/test_many_machines",
        "a_simulation_on_two_nodes_of_a_cluster_runs_by_its_batch_script",
        78,
        "the batch script of deploy/",
    ),
    (
        "packaging/test_wheel",
        "flowers_own_command_runs_the_bundle_of_the_installed_package",
        72,
        "Flower's command on an installed package",
    ),
    (
        "federation/engines/test_deployed",
        "server_and_clients_that_are_started_apart_find_each_other_and_outlive_a_run",
        70,
        "server and clients on machines of their own",
    ),
    (
        "laws/doors/test_flower_apps",
        "a_stock_app_ends_at_the_bits_of_flower_s_own_simulation",
        68,
        "apps of others, bit for bit",
    ),
    (
        "site/test_documented_commands_run",
        "no_documented_command_ends_in_a_traceback_on_a_fresh_machine",
        68,
        "the pages' commands on a fresh machine",
    ),
    (
        "laws/simulations/test_stock_bytes",
        "flower_s_store_takes_as_many_bytes_of_a_client_without_records_in_the_batch",
        66,
        "sizes tell no batch",
    ),
    (
        "benchmarks/test_performance",
        "every_part_that_a_gpu_is_measured_on_runs_on_a_processor_in_its_place",
        62,
        "benchmarks of a GPU, on a processor",
    ),
    (
        "federation/engines/test_deployed",
        "a_server_s_folder_put_back_from_a_backup_is_refused_until_what_clients_answered_is_charged",
        60,
        "backups are charged",
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
