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
        391,
        "every figure of the papers can be made",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "forty_rounds_on_real_processes_survive_the_death_of_nodes_server_app_and_superlink",
        156,
        "ledgers through kills of every process",
    ),
    ("packaging/test_recipes", "with_all_recipes_applied_quick_tests_pass", 155, "recipes, followed, break nothing"),
    (
        "federation/engines/test_deployed_hosts",
        "hosts_with_addresses_of_their_own_run_every_trust_model_and_charge_what_they_release",
        122,
        "hosts with addresses, names and files of their own",
    ),
    ("site/test_site", "no_page_script_or_style_fetches_anything", 110, "the site builds, notebooks run"),
    (
        "packaging/test_many_machines",
        "a_simulation_on_two_nodes_of_a_cluster_runs_by_its_batch_script",
        103,
        "the batch script of deploy/",
    ),
    (
        "federation/engines/test_inprocess_ray",
        "a_node_that_dies_ends_the_run_by_name_and_the_nodes_that_are_left_go_on_with_it",
        93,
        "a cluster that loses a node",
    ),
    (
        "site/test_documented_commands_run",
        "no_documented_command_ends_in_a_traceback_on_a_fresh_machine",
        85,
        "the pages' commands on a fresh machine",
    ),
    ("packaging/test_newest_flower", "every_engine_runs_on_the_newest_flower_that_is_allowed", 84, "Flower's range"),
    (
        "laws/doors/test_flower_apps",
        "a_stock_app_ends_at_the_bits_of_flower_s_own_simulation",
        79,
        "apps of others, bit for bit",
    ),
    (
        "federation/engines/test_deployed",
        "server_and_clients_that_are_started_apart_find_each_other_and_outlive_a_run",
        71,
        "server and clients started apart",
    ),
    (
        "federation/test_engines_agree",
        "flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running",
        67,
        "Flower's engines end with the same bits",
    ),
    (
        "laws/simulations/test_stock_apps",
        "the_template_and_masked_updates_run_with_one_ledger_a_node",
        60,
        "Flower apps of others, one ledger a node",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "a_run_of_masked_sums_ends_though_sites_are_killed_and_every_ledger_says_the_same",
        57,
        "ledgers of masked sums through kills",
    ),
    (
        "federation/engines/test_deployed",
        "a_killed_client_process_is_replaced_and_a_node_that_stands_still_for_half_a_minute_ends_no_run",
        55,
        "nodes that die or stand still",
    ),
    (
        "laws/simulations/test_stock_bytes",
        "flower_s_store_takes_as_many_bytes_of_a_client_without_records_in_the_batch",
        50,
        "sizes tell no batch",
    ),
    (
        "packaging/test_other_pythons",
        "every_file_compiles_without_a_warning_and_the_same_guarantees_are_answered",
        47,
        "the range of Pythons",
    ),
    (
        "laws/attacks/test_hostile_member",
        "forged_replayed_cross_posted_and_malformed_messages_of_a_member_are_survived_by_the_others",
        45,
        "a member that lies",
    ),
    (
        "packaging/test_wheel",
        "the_start_page_leads_from_nothing_to_a_report_in_ten_commands_at_most",
        45,
        "the start page on an installed package",
    ),
    (
        "laws/tables/test_every_verb",
        "a_draft_goes_unchanged_to_real_processes_that_settle_the_same_settings",
        43,
        "a draft on real processes",
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
