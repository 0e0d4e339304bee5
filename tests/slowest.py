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
        521,
        "every figure of the papers can be made",
    ),
    ("packaging/test_newest_flower", "every_engine_runs_on_the_newest_flower_that_is_allowed", 194, "Flower's range"),
    ("packaging/test_recipes", "with_all_recipes_applied_quick_tests_pass", 150, "recipes, followed, break nothing"),
    (
        "federation/engines/test_deployed_hosts",
        "hosts_with_addresses_of_their_own_run_every_trust_model_and_charge_what_they_release",
        146,
        "hosts with addresses, names and files of their own",
    ),
    (
        "site/test_documented_commands_run",
        "no_documented_command_ends_in_a_traceback_on_a_fresh_machine",
        145,
        "the pages' commands on a fresh machine",
    ),
    (
        "packaging/test_many_machines",
        "a_simulation_on_two_nodes_of_a_cluster_runs_by_its_batch_script",
        145,
        "the batch script of deploy/",
    ),
    ("site/test_site", "no_page_script_or_style_fetches_anything", 139, "the site builds, notebooks run"),
    (
        "laws/simulations/test_chaos_deployed",
        "forty_rounds_on_real_processes_survive_the_death_of_nodes_server_app_and_superlink",
        136,
        "ledgers through kills of every process",
    ),
    (
        "federation/engines/test_inprocess_ray",
        "a_node_that_dies_ends_the_run_by_name_and_the_nodes_that_are_left_go_on_with_it",
        108,
        "a cluster that loses a node",
    ),
    (
        "packaging/test_wheel",
        "flowers_own_command_runs_the_bundle_of_the_installed_package",
        105,
        "Flower's command on an installed package",
    ),
    (
        "laws/attacks/test_federation_attack",
        "the_released_model_shows_at_most_epsilon_unless_the_noise_is_too_small",
        101,
        "an attack on whole runs",
    ),
    (
        "laws/simulations/test_stock_apps",
        "the_template_and_masked_updates_run_with_one_ledger_a_node",
        86,
        "Flower apps of others, one ledger a node",
    ),
    (
        "laws/simulations/test_stock_bytes",
        "flower_s_store_takes_as_many_bytes_of_a_client_without_records_in_the_batch",
        83,
        "sizes tell no batch",
    ),
    (
        "federation/test_engines_agree",
        "flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running",
        81,
        "Flower's engines end with the same bits",
    ),
    (
        "laws/doors/test_flower_apps",
        "a_stock_app_ends_at_the_bits_of_flower_s_own_simulation",
        71,
        "apps of others, bit for bit",
    ),
    (
        "benchmarks/test_performance",
        "every_part_that_a_gpu_is_measured_on_runs_on_a_processor_in_its_place",
        65,
        "benchmarks of a GPU, on a processor",
    ),
    (
        "laws/simulations/test_neighbours",
        "real_processes_on_neighbours_leave_the_same_but_what_was_noised",
        65,
        "files and logs of real processes tell no record",
    ),
    (
        "federation/engines/test_deployed",
        "a_server_s_folder_put_back_from_a_backup_is_refused_until_what_clients_answered_is_charged",
        59,
        "backups are charged",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "a_run_of_masked_sums_ends_though_sites_are_killed_and_every_ledger_says_the_same",
        57,
        "ledgers of masked sums through kills",
    ),
    (
        "federation/engines/test_deployed",
        "whatever_ends_the_command_ends_all_it_started_and_the_run_goes_on_from_there",
        56,
        "a command that ends leaves no process",
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
