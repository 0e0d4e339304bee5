"""The twenty tests that take longest, and what each guards: a table of the site's page about contributing.

    python -m tests.slowest

Seconds are of `pytest --durations` of the slow stage on two cores that others used too: they say where time goes, not
how fast anything is.
"""

from __future__ import annotations

SLOWEST = (
    ("packaging/test_recipes", "with_all_recipes_applied_quick_tests_pass", 803, "recipes, followed, break nothing"),
    ("site/test_site", "no_page_script_or_style_fetches_anything", 294, "the site builds, notebooks run"),
    (
        "papers/test_quick",
        "every_figure_is_made_at_its_smallest_size_from_an_empty_folder",
        280,
        "every figure of the papers can be made",
    ),
    ("packaging/test_newest_flower", "every_engine_runs_on_the_newest_flower_that_is_allowed", 179, "Flower's range"),
    (
        "packaging/test_wheel",
        "nothing_of_the_checkout_is_found_but_what_the_wheel_brought",
        176,
        "an installed package is whole",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "forty_rounds_on_real_processes_survive_the_death_of_nodes_server_app_and_superlink",
        133,
        "ledgers through kills of every process",
    ),
    (
        "laws/tables/test_path",
        "adult_in_three_folders_becomes_predictions_by_the_readme_s_commands",
        103,
        "README's commands on a real table",
    ),
    (
        "federation/test_engines_agree",
        "flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running",
        95,
        "engines agree bit for bit",
    ),
    (
        "laws/simulations/test_stock_bytes",
        "flower_s_store_takes_as_many_bytes_of_a_client_without_records_in_the_batch",
        84,
        "sizes tell no batch",
    ),
    (
        "federation/test_engines_agree",
        "a_client_that_moves_between_processes_rebuilds_its_secret_batch",
        81,
        "a secret batch follows its client",
    ),
    (
        "federation/engines/test_deployed",
        "a_server_s_folder_put_back_from_a_backup_is_refused_until_what_clients_answered_is_charged",
        75,
        "a backup forgets no charge",
    ),
    (
        "federation/engines/test_deployed",
        "server_and_clients_that_are_started_apart_find_each_other_and_outlive_a_run",
        62,
        "server and clients on machines of their own",
    ),
    (
        "laws/simulations/test_chaos_deployed",
        "a_run_of_masked_sums_ends_though_sites_are_killed_and_every_ledger_says_the_same",
        59,
        "masked sums through kills",
    ),
    (
        "packaging/test_wheel",
        "the_start_page_leads_from_nothing_to_a_report_in_ten_commands_at_most",
        57,
        "the start page",
    ),
    (
        "laws/simulations/test_neighbours",
        "real_processes_on_neighbours_leave_the_same_but_what_was_noised",
        56,
        "nothing beside the noise tells neighbours apart, between processes",
    ),
    (
        "federation/engines/test_deployed",
        "whatever_ends_the_command_ends_all_it_started_and_the_run_goes_on_from_there",
        51,
        "no process is left, none of the budget lost",
    ),
    (
        "federation/engines/test_deployed",
        "a_node_that_stands_still_for_half_a_minute_ends_no_run",
        50,
        "a stall longer than Flower's lease",
    ),
    (
        "laws/tables/test_every_verb",
        "a_draft_goes_unchanged_to_real_processes_that_settle_the_same_settings",
        44,
        "one draft in one process and in many",
    ),
    ("federation/distributed/test_masked_rounds", "on_ray_sites_have_masks_and_a_ledger_a_client", 44, "masks on Ray"),
    (
        "federation/engines/test_deployed",
        "flower_s_own_executors_end_with_the_same_model",
        43,
        "Flower's own clients end with the same bits",
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
