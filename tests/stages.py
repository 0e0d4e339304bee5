"""Which cases of a test with many the quick stage runs; the slow stage runs the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

FEW: dict[str, dict[str, int]] = {
    "federation/engines/test_inprocess_ray": {
        "a_cluster_is_joined_with_the_cores_that_it_has_and_every_site_has_its_share_of_the_gpus": 0,
    },
    "privacy/accounting/test_epsilons_calibration": {
        "rounding_in_sigma_over_sensitivity_cannot_break_the_budget": 10,
        "noise_and_steps_of_slices_meet_epsilon_and_waste_little": 2,
        "the_papers_accountants_find_noise_for_slices_of_whole_images": 0,
    },
    "privacy/accounting/test_composition": {
        "where_round_off_uses_delta_up_nothing_is_calibrated_and_no_step_more_fits": 0,
        "full_batches_agree_with_the_closed_form_of_the_gaussian": 10,
        "extreme_steps_neither_crash_nor_report_too_little": 0,
        "up_to_three_steps_agree_with_brute_force_and_never_fall_below_it": 0,
        "low_noise_full_batches_are_never_below_the_closed_form_and_within_a_millionth": 1,
        "poisson_add_remove_agrees_with_dp_accounting": 1,
        "a_low_noise_sampled_step_inverts_its_exact_profile_from_above": 2,
        "where_round_off_uses_delta_up_epsilon_says_so_and_how_much": 0,
    },
    "privacy/accounting/test_profiles_triangle": {
        "the_lower_end_is_never_above_the_guarantee": 6,
    },
    "laws/attacks/test_lying_server": {
        "no_sizes_that_a_server_may_say_move_a_flipped_label_beyond_the_claim": 2,
        "no_search_over_sizes_parameters_precisions_and_magnitudes_moves_a_record_beyond_the_claim": 0,
    },
    "laws/attacks/test_released_path": {
        "no_record_moves_what_the_rounds_send_by_more_than_its_bound": 4,
    },
    "audit/test_bounds_guesses": {
        "more_than_epsilon_is_shown_of_randomised_response_no_oftener_than_allowed": 3,
        "more_right_guesses_and_less_confidence_show_more": 0,
    },
    "desk/baselines/test_baselines": {
        "rows_name_their_guarantee_and_stand_apart_from_others": 0,
        "the_penalty_lowers_the_violation": 1,
        "the_epsilon_of_pooled_records_is_the_one_that_opacus_says": 0,
    },
    "desk/baselines/test_reference": {
        "numbers_are_predicted_as_least_squares_does_and_trees_where_lines_do_not_do": 0,
        "the_more_the_penalty_weighs_the_fairer_it_is": 0,
        "under_a_penalty_it_is_the_same_objective_at_rest": 0,
        "a_plan_measures_against_it_on_public_twins_alone": 0,
    },
    "federation/messages/test_messages": {
        "only_what_the_table_allows_travels": 5,
        "every_field_of_the_table_travels_in_some_run": 0,
    },
    "federation/node/test_node_subnormal": {
        "clients_compute_with_flushing_and_protect_without": 4,
    },
    "federation/messages/test_messages_table": {
        "a_message_without_one_of_its_keys_is_refused_by_name": 8,
        "a_message_decodes_and_encodes_again_to_the_same_fields": 4,
        "a_real_message_with_any_value_in_one_place_is_read_as_declared_or_refused": 4,
        "a_key_that_no_message_of_the_run_holds_is_refused_by_name": 10,
        "a_setting_or_metric_of_another_type_or_length_is_refused_and_a_diagnostic_left_out": 8,
    },
    "mathematics/clipping/test_columns_cut": {
        "one_record_moves_a_sum_of_many_by_its_own_part_in_layers_of_any_width": 1,
        "two_sites_that_cancel_leave_at_most_their_limit": 3,
        "no_layer_leaves_more_than_its_limit_at_any_magnitude": 0,
    },
    "mathematics/clipping/test_clip_float32": {
        "stretched_jacobians_stay_below_the_bound": 3,
        "every_layer_stays_below_the_bound": 5,
    },
    "mathematics/clipping/test_columns": {
        "both_ways_equal_the_loop_over_samples": 5,
        "one_record_leaves_at_most_its_limit_at_any_magnitude_both_ways": 2,
    },
    "mathematics/clipping/test_rules": {
        "clipped_sums_equal_the_loop_over_samples": 6,
        "gram_matrices_equal_those_of_materialised_jacobians": 10,
        "a_batch_without_records_contributes_zero": 10,
    },
    "mathematics/clipping/test_clip_limits": {
        "a_saturated_softmax_of_large_features_stays_below_the_bound": 2,
        "a_jacobian_that_its_kernel_cannot_see_is_cut_all_the_same": 10,
    },
    "data/columns/test_declared": {
        "importing_the_data_package_imports_no_library_of_containers": 0,
    },
    "data/test_image_sets": {
        "the_published_files_have_the_published_counts": 2,
    },
    "federation/deploy/test_bundle": {
        "the_demanded_bundle_is_served": 0,
        "a_folder_of_an_earlier_bundle_is_not_served_in_place_of_the_one_that_came": 0,
        "a_server_takes_other_code_but_where_all_rest_on_it_or_a_setting_says_so": 1,
    },
    "federation/deploy/test_connections": {
        "a_stranger_s_body_that_trickles_is_cut_and_a_node_s_is_not": 0,
    },
    "audit/test_canary_masked": {
        "a_broken_build_fails_the_audit": 1,
        "a_server_with_c_sites_that_writes_the_table_sees_nearly_all_of_epsilon_and_never_more": 1,
        "a_sum_of_as_few_clients_as_may_be_shows_no_more": 0,
    },
    "federation/distributed/test_once_sketches": {
        "all_planned_attempts_at_all_stages_together_cost_what_was_asked_for": 0,
        "masks_change_no_bit_of_a_run": 1,
        "the_sum_has_the_noise_of_a_trusted_server_times_the_clients_over_the_honest": 1,
    },
    "federation/distributed/test_ranked": {
        "a_run_of_every_task_is_charged_as_planned_and_passes_its_audit": 1,
        "with_little_noise_and_many_bins_a_round_of_any_task_is_the_trusted_servers": 0,
        "masks_change_no_bit_of_any_task": 1,
    },
    "laws/fuzz/test_messages": {
        "whatever_comes_is_a_message_of_the_table_or_malformed": 17,
    },
    "mathematics/transport/test_denoise": {
        "pywavelets_is_imported_only_when_it_is_used": 0,
    },
    "privacy/test_slices": {
        "squared_movement_over_the_squared_diameter_follows_the_law_of_the_profile": 1,
    },
    "mutants/test_mutants": {
        "tests_that_never_end_are_an_error": 0,
    },
    "desk/own_data/test_evaluate": {
        "a_client_that_kept_hardly_a_record_has_a_line_and_words_in_place_of_numbers": 2,
    },
    "desk/own_data/test_synthetic_table_usefulness": {
        "a_table_is_useful_or_not_by_what_a_model_learns_from_it": 2,
        "screen_and_card_say_first_that_a_table_is_of_no_use": 0,
    },
    "papers/test_compared": {
        "every_figure_of_a_paper_has_what_the_paper_prints_of_it": 1,
    },
    "papers/test_labels": {
        "an_autoencoder_of_released_images_remakes_others_from_codes_near_its_prior": 0,
    },
    "papers/test_post_processing": {
        "histograms_are_paid_for_once_and_measuring_again_spends_nothing": 0,
    },
    "papers/test_reproduce": {
        "the_page_of_results_has_every_goal_with_what_was_measured": 0,
        "every_figure_names_experiments_measures_and_drawings_that_there_are": 10,
        "every_row_of_a_table_is_a_point_that_some_series_has": 10,
        "a_built_page_has_every_figure_of_its_paper_with_its_pictures": 2,
        "the_built_page_of_settings_has_the_table_of_a_figure": 1,
    },
    "papers/test_rrspf_pictures": {
        "a_computed_figure_is_made_and_drawn": 1,
        "a_figure_of_runs_is_drawn_from_what_its_measures_leave": 1,
        "a_case_that_is_stored_is_not_computed_again_and_shows_before_the_others": 0,
    },
    "privacy/test_release": {
        "whatever_a_run_charges_or_noises_goes_through_the_door": 6,
    },
    "runs/test_group_thresholds": {
        "noise_leaves_a_share_inside_its_band_as_often_as_said": 0,
    },
    "runs/report/test_run_documents_page": {
        "the_page_says_what_the_summary_says": 2,
        "several_runs_say_what_they_cost_together_before_anything_else": 0,
    },
    "federation/test_availability": {
        "a_client_that_is_dead_costs_one_time_limit_not_one_a_round": 0,
        "a_round_with_too_few_clients_waits_a_time_limit_for_those_greeted": 1,
    },
    "laws/runs/test_faults": {
        "a_hanging_client_is_missing_and_the_run_goes_on_where_enough_are_left": 1,
        "a_hanging_client_ends_the_run_with_its_name_not_in_a_hang": 0,
    },
    "laws/runs/test_garbage": {
        "a_client_that_sends_garbage_is_lost_by_name_and_the_others_go_on": 5,
        "a_greeting_that_is_answered_with_garbage_costs_its_sender_alone": 4,
    },
    "laws/runs/test_image_classifiers": {
        "an_exported_classifier_takes_images_and_answers_as_the_run_does": 0,
        "rounds_on_coded_images_are_not_attacked_with_a_remedy_and_a_runs_record_holds": 0,
        "what_a_run_measures_is_what_its_model_answers_under_every_trust_model": 1,
        "scores_are_counted_of_records_as_the_released_model_takes_them": 0,
        "records_are_coded_once_however_many_rounds_there_are": 0,
    },
    "federation/node/test_own_ledger": {
        "a_client_that_hangs_into_the_next_run_charges_nothing_there": 0,
    },
    "federation/test_local_gradient": {
        "with_little_noise_and_many_bins_a_round_is_the_trusted_servers": 1,
    },
    "federation/trust/test_context_local": {
        "under_local_trust_each_client_of_a_site_has_its_own_ledger_and_noise": 2,
    },
    "federation/test_local_slices": {
        "a_release_is_asked_for_once_and_every_loss_learns_from_it": 2,
    },
    "federation/test_sums_once_moments": {
        "a_run_that_goes_on_has_the_moments_that_it_had_and_ends_with_the_same_bits": 1,
        "a_run_with_moments_passes_its_own_audit_and_fails_it_where_they_cost_less": 1,
        "moments_and_all_rounds_compose_to_the_promised_epsilon": 4,
        "moments_are_charged_once_and_whole_before_the_rounds": 1,
        "a_run_that_is_to_stop_after_its_moments_stops_there_wherever_it_broke_off": 2,
    },
    "laws/runs/test_promises": {
        "a_run_goes_on_only_at_the_delta_that_its_rounds_were_paid_for": 2,
    },
    "federation/node/test_node_requests": {
        "a_client_charges_nothing_for_a_request_that_it_does_not_believe": 13,
    },
    "federation/test_sums_once_scores": {
        "a_run_that_goes_on_has_the_counts_and_the_model_that_it_had": 1,
        "an_audit_fails_where_counts_have_no_noise_or_cost_less": 1,
        "counts_are_charged_once_and_whole_after_the_rounds_and_the_run_passes_its_audit": 1,
        "a_round_that_was_charged_and_lost_takes_the_place_of_the_last_one_and_not_of_the_counts": 2,
        "without_noise_the_released_model_is_the_rounds_one_with_its_logits_scaled": 1,
        "the_account_sets_aside_the_counts_too": 1,
    },
    "laws/runs/test_secrets": {
        "a_seeded_run_would_have_been_noticed": 4,
        "in_a_run_without_a_seed_nothing_secret_follows_from_a_number": 4,
    },
    "laws/runs/test_sites": {
        "a_site_of_many_clients_ends_at_the_parameters_of_one_process_a_client": 2,
    },
    "federation/test_sketch_runs": {
        "restarts_are_chosen_by_the_sketch_and_change_no_message_and_no_charge": 1,
    },
    "federation/test_sketch_shares": {
        "chosen_shares_are_those_of_the_plan_the_ledgers_and_the_record_and_cost_what_was_asked_for": 2,
    },
    "federation/test_sketch_stages": {
        "a_run_that_breaks_off_between_stages_goes_on_as_if_it_had_not": 1,
        "the_audit_passes_a_run_in_stages_and_names_a_stage_that_has_less_noise_than_its_share": 1,
        "whatever_says_the_guarantee_of_a_run_in_stages_speaks_of_all_of_them": 1,
    },
    "federation/test_wire_stored_bytes": {
        "no_object_that_depends_on_a_client_equals_another": 3,
        "a_message_takes_the_same_bytes_whatever_is_in_the_batch": 1,
    },
    "laws/devices/test_transfers": {
        "a_run_ends_where_the_processors_ends": 1,
        "what_crosses_in_a_round_grows_with_nothing_but_the_sites": 2,
    },
    "audit/test_canary": {
        "a_record_that_is_drawn_too_often_fails_the_audit": 0,
        "the_command_leaves_json_and_a_figure_and_says_in_its_exit_code_whether_the_claim_stands": 0,
        "a_prior_is_attacked_too_and_never_shows_more_than_the_claim": 0,
        "with_sampling_the_instance_is_the_lower_end_of_the_bracket_and_the_attack_shows_most_of_it": 0,
        "a_broken_build_fails_the_audit": 1,
        "where_the_bound_is_attained_and_all_records_take_part_nearly_all_of_epsilon_is_shown": 2,
    },
    "audit/test_canary_once": {
        "a_broken_build_fails_the_audit": 1,
        "whatever_leaves_beside_the_rounds_shows_nearly_all_of_its_mu_and_never_more": 1,
        "half_the_noise_of_what_leaves_beside_the_rounds_fails_the_audit": 1,
        "whoever_sees_all_stages_and_writes_the_network_sees_nearly_all_of_epsilon_and_never_more": 1,
        "counts_that_calibrate_are_attacked_at_rate_1_and_show_nearly_all_of_their_mu": 1,
        "sums_over_kept_records_of_a_regression_show_most_of_their_mu": 0,
        "every_row_of_additions_and_removals_is_attacked_by_a_record_there_or_not_at_its_own_sensitivity": 0,
    },
    "audit/record/test_record_held_out": {
        "an_honest_release_of_kept_records_passes_every_check": 2,
    },
    "audit/record/test_record": {
        "an_honest_folder_of_every_trust_model_passes_every_check": 1,
        "a_wrong_sensitivity_of_several_penalties_is_named_although_all_else_was_forged": 1,
    },
    "audit/record/test_record_sketches": {
        "a_correct_run_of_every_kind_of_sketch_passes_and_a_little_less_than_its_bound_is_named": 1,
    },
    "laws/simulations/test_chaos_deployed": {
        "the_audit_finds": 5,
    },
    "federation/deploy/test_deploy_processes": {
        "a_killed_server_app_is_found_out_while_its_submission_waits": 0,
    },
    "laws/simulations/test_ended_runs": {
        "a_path_that_is_too_long_is_bad_input": 6,
        "a_run_is_its_owners_alone_whatever_the_umask": 0,
        "an_output_that_nobody_reads_is_no_traceback": 0,
        "a_signal_ends_a_run_with_a_summary_from_which_it_goes_on": 0,
    },
    "laws/simulations/test_neighbours": {
        "neighbours_leave_the_same_in_every_file_line_and_message_but_what_was_noised": 1,
    },
    "runs/report/test_plots": {
        "every_figure_of_the_package_is_drawn_in_the_house_style": 0,
        "a_figure_without_its_data_is_left_out": 2,
        "no_text_of_a_users_is_read_as_mathematics": 0,
    },
    "federation/deploy/test_executor": {
        "a_reply_that_cannot_be_delivered_does_not_end_the_node": 0,
        "a_worker_ends_with_its_node": 0,
        "runs_of_one_bundle_share_a_process_but_neither_state_nor_settings": 0,
        "a_worker_that_dies_before_it_is_asked_anything_is_replaced": 0,
    },
    "laws/runs/test_agreement": {
        "a_run_and_a_loop_at_one_seed_end_at_the_same_parameters": 2,
        "several_penalties_are_the_same_in_a_federation_and_on_one_machine": 1,
    },
    "laws/devices/test_device": {
        "a_gradient_is_the_hosts_and_comes_back_once_however_many_records_there_are": 1,
    },
    "learning/objectives/test_penalties": {
        "the_search_finds_a_bound_that_is_too_small": 1,
    },
    "runs/single/test_trainer": {
        "the_trainer_is_the_loop_that_one_would_write": 2,
        "rounds_a_message_are_the_whole_training_if_the_model_comes_back_as_it_left": 1,
    },
    "learning/sketches/test_fit": {
        "an_image_generator_learns_two_pictures_through_batchnorm": 1,
        "of_restarts_the_nearest_to_the_sketch_goes_on_as_if_it_had_been_alone": 1,
    },
    "learning/sketches/test_table_counts_marginals": {
        "where_nothing_drifts_intervals_hold_0_and_doubts_are_seldom_small": 0,
    },
    "learning/sketches/test_parts_one_sided": {
        "a_hostile_network_changes_nothing_but_the_result": 3,
        "gradient_ascent_on_pairs_of_records_of_one_cell_stays_below_a_parts_own_diameter": 5,
        "no_pair_of_records_moves_a_part_or_all_of_them_by_more_than_the_bound": 1,
    },
    "learning/sketches/test_scattering": {
        "no_two_images_are_farther_apart_after_the_map_however_they_are_sought": 2,
    },
    "learning/sketches/test_sketch_law": {
        "a_law_or_records_that_do_not_fit_are_named": 4,
    },
    "learning/tasks/test_tally": {
        "hardly_a_model_that_is_no_better_than_a_constant_is_called_better_of_a_skewed_target": 3,
        "on_labels_of_pure_noise_hardly_a_run_is_called_better_than_a_constant": 1,
        "printed_intervals_hold_the_law_that_records_are_drawn_from_as_often_as_they_say": 1,
    },
    "laws/test_malformed": {
        "a_malformed_input_is_named_and_nothing_is_spent": 8,
    },
    "learning/objectives/test_distances_matching": {
        "replacing_one_private_record_never_exceeds_the_bound": 5,
    },
    "learning/models/test_models": {
        "contributions_of_image_models_are_those_of_materialised_jacobians": 2,
    },
    "site/test_python_page": {
        "one_machine_and_its_federated_twin_end_at_the_same_parameters": 0,
    },
    "privacy/test_sensitivity": {
        "gradient_ascent_comes_close_to_a_bound_and_never_exceeds_it": 1,
    },
    "desk/use/test_use_printed_texts": {
        "no_verb_lets_a_text_of_a_folder_command_the_terminal": 3,
        "pages_and_cards_make_the_folder_that_they_are_to_be_in": 0,
    },
    "laws/tables/test_private_files": {
        "a_comparison_with_all_its_cells_is_private": 0,
    },
    "laws/tables/test_stored_code": {
        "an_allowed_module_of_a_stored_run_is_loaded": 0,
        "a_link_in_a_stored_run_is_not_followed": 1,
        "a_verb_that_shows_a_stored_run_runs_no_code_that_its_settings_name": 2,
        "no_setting_of_a_stored_run_names_code_that_runs": 9,
    },
    "site/test_documented_commands": {
        "every_documented_command_is_understood": 12,
    },
    "_tools/test_subnormal": {
        "all_threads_of_a_computation_flush_and_no_other_does": 0,
    },
    "desk/own_data/test_own_data": {
        "the_checks_of_what_is_printed_run_under_every_trust_model_that_trains": 0,
    },
    "desk/own_data/test_description": {
        "every_histogram_is_the_truth_within_its_stated_noise": 1,
        "wide_bounds_are_named_with_what_would_do": 0,
    },
    "desk/use/test_use_overwritten": {
        "a_file_that_is_there_is_written_over_with_force_alone": 0,
    },
    "desk/compare/test_compare_grid": {
        "a_task_runs_a_method_with_its_tuning_and_the_command_line_wins": 0,
        "every_task_can_run_what_it_compares": 0,
    },
    "experiment/test_preset_rules": {
        "what_is_written_of_the_model_is_never_chosen_otherwise": 0,
        "the_smaller_a_group_the_less_noise_its_penalty_takes_down_to_half_of_that_of_the_loss": 0,
    },
    "data/test_blocks": {
        "either_reader_refuses_the_same_cells_in_the_same_words": 2,
    },
    "federation/distributed/test_masked_rounds": {
        "with_little_noise_and_many_bins_a_round_is_the_trusted_servers": 1,
        "masks_change_no_bit_of_a_run": 2,
        "a_site_that_costs_others_sits_out_longer_each_time": 1,
    },
    "federation/distributed/test_attempt_cost": {
        "replacing_a_record_moves_both_sums_by_at_most_what_is_charged": 1,
    },
    "federation/distributed/test_once": {
        "kept_records_are_charged_whole_and_once_and_training_costs_them_nothing": 1,
    },
    "federation/test_replies": {
        "an_unreadable_greeting_costs_its_sender_alone_where_the_others_are_enough": 1,
        "a_malformed_reply_loses_its_sender_and_never_the_run": 4,
    },
    "federation/test_sums_once_held_out": {
        "without_noise_the_metrics_are_those_of_all_kept_records": 3,
        "a_limit_that_one_part_alone_would_fit_refuses_the_run_before_anything_is_spent": 1,
        "kept_records_are_measured_as_they_are_after_moments_too": 1,
    },
    "laws/runs/test_patience": {
        "a_stall_shorter_than_the_timeout_ends_no_run_in_either_exchange": 1,
        "nor_does_it_where_masks_need_every_site": 1,
    },
    "mathematics/transport/test_sliced": {
        "the_order_is_that_of_a_stable_sort_whatever_is_tied": 4,
    },
    "runs/test_intervals": {
        "gaps_and_ratios_of_groups_are_held_where_there_is_no_gap_too": 1,
        "on_labels_of_pure_noise_hardly_a_model_is_called_better_than_a_constant": 1,
    },
    "desk/own_data/test_positive": {
        "ratios_rates_and_thresholds_of_two_classes_are_of_the_positive_one": 0,
    },
    "mathematics/clipping/test_attention": {
        "attention_is_clipped_exactly_as_its_naive_jacobian": 0,
        "a_transformer_is_clipped_exactly_as_its_naive_jacobian": 0,
        "frozen_parts_of_attention_are_neither_measured_nor_released": 6,
        "decoders_and_stacks_of_layers_are_clipped_exactly": 1,
    },
    "mathematics/clipping/test_clipped_terms_column": {
        "clipped_sums_of_several_heads_equal_the_loop": 20,
        "clipping_all_heads_at_once_is_clipping_one_after_the_other": 0,
    },
    "privacy/accounting/test_epsilons": {
        "whatever_the_noise_every_accountant_reads_an_epsilon_that_falls_with_it": 0,
    },
    "privacy/lifetime/test_dataset_account_copies": {
        "of_copies_of_a_stopped_run_one_goes_on_and_the_account_counts_every_release": 1,
    },
    "privacy/lifetime/test_chosen": {
        "no_choice_of_what_extends_a_plan_shows_more_than_the_limit": 1,
        "whatever_is_chosen_by_what_was_released_shows_no_more_than_the_limit": 0,
    },
    "papers/test_plans": {
        "a_run_that_is_planned_otherwise_today_is_found_and_made_again": 0,
    },
    "mathematics/clipping/test_refusals_rehearsal": {
        "what_is_remembered_of_a_module_goes_with_it": 0,
    },
    "cli/test_app": {
        "a_run_begins_without_what_it_does_not_need_to_begin": 0,
    },
    "cli/test_app_startup": {
        "a_command_that_computes_nothing_imports_nothing_that_computes": 1,
        "a_budget_imports_its_accountants_and_no_more": 0,
    },
    "desk/use/test_export_additive": {
        "an_additive_model_is_trained_on_persons_with_missing_cells_and_answers_as_its_export": 1,
    },
    "privacy/lifetime/test_dataset_account": {
        "what_is_advised_is_admitted_and_two_per_cent_more_is_not": 1,
    },
    "runs/test_telemetry": {
        "the_size_of_a_message_tells_nobody_how_many_records_a_client_was_asked_for": 0,
    },
    "privacy/accounting/test_meaning": {
        "the_profile_says_no_more_than_its_epsilon_and_delta_do": 0,
    },
    "papers/test_rco_drawn": {
        "every_method_has_a_sheet_in_every_row_and_a_missing_one_is_named": 0,
    },
    "_tools/test_text": {
        "no_epsilon_and_no_delta_is_written_to_the_nearest_digit": 0,
    },
    "privacy/accounting/test_epsilons_calibration_report": {
        "accounting_imports_nobody_elses_accountant": 0,
    },
    "runs/observers/test_observers_mlflow": {
        "infinite_and_missing_numbers_and_many_clients_are_taken": 0,
    },
    "audit/test_one_run": {
        "records_of_one_s_own_are_attacked_with_no_noise_only_where_that_is_asked_for": 0,
        "of_sampled_batches_no_more_than_epsilon_is_shown_either_and_no_pair_exceeds_the_sensitivity": 0,
    },
    "laws/fuzz/test_files": {
        "an_array_header_that_says_anything_takes_no_memory": 0,
    },
    "cli/test_options": {
        "every_line_of_help_fits_80_columns": 0,
    },
    "privacy/lifetime/test_lifetime_single": {
        "whatever_is_killed_at_any_point_its_charges_count_and_it_goes_on": 4,
    },
    "federation/server/test_owed": {
        "a_client_refuses_an_attempt_that_it_has_answered": 2,
    },
    "privacy/lifetime/test_lifetime_runs": {
        "under_local_trust_every_client_has_an_account_that_its_ledger_keeps_to": 1,
    },
    "mathematics/clipping/test_clipped_terms_nonfinite": {
        "the_sum_is_that_of_the_other_records": 10,
    },
    "cli/test_plan_budget": {
        "what_makes_no_sense_is_one_line_and_code_2": 7,
        "random_slices_stand_beside_the_published_calculations_in_one_table": 0,
    },
    "privacy/accounting/test_epsilons_flower": {
        "the_note_for_flower_says_what_is_computed": 1,
    },
    "desk/compare/test_compare_command": {
        "the_list_names_every_task_and_method": 0,
        "a_failed_cell_makes_the_command_say_how_to_go_on": 0,
    },
    "laws/test_elsewhere": {
        "records_of_a_convolution_are_added_together_as_one_by_one": 1,
    },
    "laws/runs/test_audited_folders": {
        "an_honest_run_under_every_trust_model_with_all_that_it_releases_passes": 4,
    },
    "federation/node/test_replies_withheld": {
        "what_an_own_task_says_of_a_record_stays_with_its_client": 3,
    },
    "cli/test_app_encodings": {
        "verbs_that_look_say_the_same_json_and_no_error": 1,
    },
    "laws/runs/test_nothing_kept": {
        "no_copy_of_a_model_keeps_anything_of_a_record_at_any_site": 1,
    },
    "laws/runs/test_one_rehearsal": {
        "a_model_that_passed_at_the_door_is_not_tried_again_in_a_round": 1,
    },
    "experiment/test_penalty_names": {
        "a_stated_bound_is_trained_charged_and_named_with_whose_word_it_is": 1,
        "a_penalty_of_parts_is_proven_under_every_trust_that_sums_and_its_strata_are_public": 1,
    },
    "cli/test_columns": {
        "columns_are_written_as_rows_are": 1,
    },
    "federation/deploy/test_deploy": {
        "a_process_of_a_deployment_asks_this_machine_through_no_proxy": 2,
    },
    "laws/examples/test_quantile_regression": {
        "the_guarantee_is_that_of_a_regression_of_the_same_sizes_and_dimension": 1,
    },
    "laws/attacks/test_local_gradient": {
        "a_broken_client_is_caught": 2,
        "on_other_instances_a_lying_server_never_shows_more_than_epsilon": 2,
    },
    "runs/single/test_begun": {
        "whatever_a_task_holds_is_what_was_begun": 1,
    },
    "runs/single/test_objective": {
        "micro_batches_change_nothing": 2,
    },
    "learning/tasks/test_released_moments_coefficients": {
        "intervals_hold_the_populations_slope_as_often_as_they_say_whatever_the_noise": 5,
    },
    "mathematics/clipping/test_rules_worst": {
        "worst_neighbours_move_a_sum_by_nearly_all_that_a_clip_allows_and_never_more": 20,
    },
    "test_sklearn": {
        "the_nine_classifiers_of_the_demo_come_out_of_it": 3,
    },
    "mathematics/clipping/test_clipped_terms_frozen": {
        "heads_on_frozen_backbones_are_clipped_exactly": 3,
    },
    "mathematics/clipping/test_unchanged": {
        "a_pass_on_private_records_leaves_a_module_as_it_was": 10,
    },
    "mathematics/clipping/test_clipped_terms_opacus": {
        "per_sample_norms_and_clipped_sums_agree_with_opacus": 6,
    },
    "learning/tasks/test_calibration": {
        "without_a_signal_the_class_shares_are_predicted_and_nothing_is_worse_than_they_are": 1,
    },
    "laws/runs/test_histograms_first": {
        "a_run_that_breaks_off_after_its_histograms_has_them_and_its_bins_and_is_not_charged_again": 1,
        "histograms_are_charged_once_and_whole_before_moments_and_the_run_passes_its_audit": 1,
        "an_audit_fails_where_histograms_are_others_than_the_ledger_and_the_bins_say": 2,
        "an_account_sets_aside_what_histograms_cost": 1,
    },
    "privacy/accounting/test_pld": {
        "moments_for_the_window_bound_those_of_the_even_grid": 0,
    },
    "packaging/test_project_files": {
        "the_recipes_run_in_python_and_on_the_command_line": 0,
    },
    "site/test_from_pages": {
        "a_page_runs_as_written": 1,
    },
    "desk/own_data/test_synthetic_table": {
        "a_later_stage_measures_pairs_that_the_first_release_chose_and_both_fit_the_budget": 0,
    },
    "audit/test_canary_layers": {
        "columns_about_their_middle_are_attacked_behind_that_map": 1,
    },
    "papers/test_lemmas": {
        "rco_corollary_1_recovers_points_at_the_noises_own_scale_alone": 0,
    },
    "papers/test_rr_computed": {
        "in_features_real_digits_are_nearer_to_held_out_ones_than_static_is": 0,
    },
    "learning/models/test_scattering": {
        "variance_without_noise_is_estimated_from_noised_moments": 0,
    },
    "laws/runs/test_matching_runs": {
        "a_generator_learns_without_noise_and_its_ledger_follows_the_bound": 0,
    },
}
"""Of the tests that take longest, by file, without "test_": so many cases are quick, spread evenly over all of them."""


def set_aside(items: Sequence[pytest.Item]) -> None:
    """Mark as slow what the quick stage does not run, and as again what of it is a further case of a test.

    What is slow by itself is not counted.
    """
    cases = [(_test_of(item), item) for item in items if item.get_closest_marker("slow") is None]
    counts, met, quick = Counter(test for test, _ in cases), Counter[str](), set[str]()
    for test, item in cases:
        path, _, name = test.partition(".py::test_")
        few = FEW.get(path.removeprefix("tests/"), {}).get(name, counts[test])
        if met[test] * few % counts[test] >= few:
            item.add_marker(pytest.mark.slow)
        elif test in quick:
            item.add_marker(pytest.mark.again)
        else:
            quick.add(test)
        met[test] += 1


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
