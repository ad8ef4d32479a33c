"""Which test holds what: the behaviours of mixed precision, the exit codes, what each verb prints in each format.

`test_behaviours.py` holds this to its word. A test is called by the name of its function, which no other has; named are
those that would fail first, not all that would. Whoever renames one of them renames it here.
"""

from collections.abc import Mapping

BEHAVIOURS: Mapping[str, tuple[str, ...]] = {
    # Inputs stored in half
    "one Linear on an fp32 input makes three casts, on a half input two": (
        "test_a_linear_casts_bias_weight_and_input_and_then_runs_t_and_addmm",
        "test_a_linear_given_half_casts_only_bias_and_weight",
        "test_a_users_linear_makes_three_casts_and_two_with_its_input_in_half",
    ),
    "the cast that an input stored in half would save is named": (
        "test_a_summary_says_what_one_linear_casts_and_which_cast_could_be_saved",
        "test_an_input_stored_in_half_saves_its_cast_and_changes_no_bit",
    ),
    "inputs in half change no bit where the first op takes half, and lose where it is one of fp32": (
        "test_a_linear_takes_half_as_it_is_to_the_last_bit_and_saves_a_cast",
        "test_a_layer_norm_sees_inputs_that_are_really_rounded",
        "test_a_concatenation_with_fp32_promotes_the_input",
        "test_a_real_study_tells_both_situations_apart",
    ),
    "inputs in half are measured in bytes, copies, time, memory, casts and errors, in both phases": (
        "test_machines_have_a_row_for_each_dtype_and_each_input",
        "test_unless_told_otherwise_both_phases_are_measured_in_the_devices_own_autocast_dtype",
    ),
    "a half activation is taken as it is, or cast back where an op needs fp32": (
        "test_the_next_layer_takes_a_half_activation_as_it_is_and_an_fp32_op_casts_it_back",
    ),
    # Where autocast is entered
    "five scopes of autocast have their casts, times, memory with its growth, dtypes, errors and exceptions": (
        "test_each_scope_shows_its_costs_and_the_recommended_one_none_of_them",
        "test_around_the_whole_loop_weights_are_stale_and_elsewhere_they_are_not",
        "test_without_its_cache_autocast_casts_a_weight_at_every_use",
        "test_what_a_scope_raises_is_its_finding_and_the_others_are_measured",
        "test_growth_is_told_instead_of_what_is_kept_and_is_the_median",
    ),
    "autocast's cache holds fp32 leaves that require grad, in the outermost region, and no more": (
        "test_the_second_use_of_a_weight_comes_from_the_cache",
        "test_a_new_autocast_region_casts_weights_anew",
        "test_inputs_activations_and_frozen_weights_are_never_cached",
        "test_the_cache_holds_each_weight_once_however_many_steps_are_traced",
        "test_no_grad_lets_the_cache_keep_what_inference_mode_casts_again",
    ),
    "a cast made without grad and met again with it is probed": (
        "test_a_planted_defect_of_the_cache_is_seen",
    ),
    "a function, class, instance or submodule by its name runs in fp32, and its fp32 inputs are not rounded": (
        "test_a_function_gets_fp32_unrounded_and_half_inputs_converted",
        "test_a_class_is_kept_for_instances_made_before_and_after",
        "test_one_instance_is_kept_and_others_of_its_class_are_not",
        "test_submodules_are_chosen_by_name_and_by_pattern",
        "test_outputs_go_back_to_the_dtype_around_where_asked",
    ),
    "coordinates of boxes stay fp32 from end to end": (
        "test_roi_align_takes_coordinates_that_half_cannot_hold_from_end_to_end",
    ),
    "modules tell their dtypes in and out, and softmax stays low on a CPU alone": (
        "test_a_module_tells_the_dtypes_in_and_out_and_softmax_stays_low_on_a_cpu",
        "test_softmax_stays_low_on_the_cpu_and_goes_to_fp32_elsewhere",
    ),
    "every cast is logged with its op, module and phase": (
        "test_a_traced_training_step_is_bit_identical_and_counts_what_a_plain_log_counts",
        "test_gradients_are_cast_back_in_the_backward_pass_of_their_module",
    ),
    "traced, compiled and autograd's graphs have their casts, held against eager mode's": (
        "test_a_traced_network_folds_its_weights_and_computes_in_eager_mode_s_dtypes",
        "test_where_a_compiled_network_differs_is_what_is_true",
        "test_the_casts_are_those_that_the_backward_pass_then_makes",
    ),
    "tracing within autocast fails with the cache and works without, and autocast within a trace works": (
        "test_a_trace_in_a_region_fails_with_the_cache_and_works_without",
        "test_a_claim_of_the_document_holds_or_does_not",
    ),
    # What half can hold
    "a product of fp32 matrices is half, and mixing it with fp32 outside raises": (
        "test_a_product_of_fp32_matrices_is_half_and_mixing_it_outside_raises",
    ),
    "4096 sixteens overflow in fp16, told before and after": (
        "test_a_sum_of_4096_sixteens_is_told_before_and_after_it_is_run",
    ),
    "1 + 1e-4 stays 1 in fp16: updates that rounding swallows are told": (
        "test_an_update_too_small_for_its_weight_is_told",
        "test_as_many_updates_are_counted_as_a_step_of_stored_weights_loses",
    ),
    "overflow and underflow are predicted from fp32 and confirmed": (
        "test_an_overflowing_and_a_flushing_layer_are_predicted",
        "test_predictions_on_ten_networks_are_precise_and_complete",
        "test_predictions_and_what_is_seen_are_of_the_same_batches",
    ),
    "products and copies have rates and bytes of their own in each dtype": (
        "test_a_copy_is_as_many_bytes_in_every_dtype_read_and_written",
        "test_native_bf16_attains_more_than_fp32_and_emulated_fp16_less",
        "test_half_precision_has_its_rate_and_the_time_of_copies_against_fp32",
    ),
    "the scale over time, skipped steps, and what flushes with and without scaling": (
        "test_gradients_that_underflow_are_counted_and_scaling_saves_them",
        "test_the_scale_comes_down_until_gradients_fit_and_grows_again",
        "test_a_scale_is_needed_where_only_trainings_with_one_end_as_fp32_does",
        "test_a_fall_below_the_spacing_of_fp16_is_judged_by_weights_and_only_a_high_start_is_behind",
        "test_the_example_fails_without_scaling_and_is_repaired_by_it",
    ),
    "fp16 training is held against fp32's on real data": (
        "test_a_network_that_loses_its_input_in_half_is_seen_to_learn_nothing_there",
        "test_a_loss_of_one_point_is_found_with_three_seeds",
    ),
    # Intel's GPUs
    "the documented convolution is a workload at its documented size, and its claims are judged": (
        "test_the_documented_convolution_has_its_documented_size_at_preset_large",
        "test_a_claim_of_the_document_holds_or_does_not",
    ),
    "fp64, integers, in-place forms and out= are left alone": (
        "test_addmm_can_be_autocast_but_not_in_place_nor_with_out_nor_in_fp64_nor_with_integers",
        "test_addmm_is_eligible_and_its_in_place_and_out_forms_are_not",
    ),
    "documented, registered and observed rules are compared, and every disagreement is listed": (
        "test_each_kind_of_disagreement_is_told_from_the_others",
        "test_xpus_prelu_and_binary_cross_entropy_disagree_with_the_documents",
        "test_nearly_every_registered_rule_is_observed_to_have_an_effect",
    ),
    "the documented spelling is not there, and default dtypes are told by device": (
        "test_claims_of_the_document_are_judged_on_fake_tensors",
        "test_every_device_has_the_precisions_that_go_by_its_default_dtype",
    ),
}  # fmt: skip
"""By what is to be seen of mixed precision."""

EXIT_CODES: Mapping[int, tuple[str, ...]] = {
    0: (
        "test_the_same_code_passes_and_the_share_decided_is_said_last",
        "test_a_run_ends_with_the_table_the_advice_and_the_path_of_its_file",
    ),
    1: ("test_a_slowdown_fails_and_the_last_lines_say_why",),
    2: (
        "test_a_usage_error_is_one_line_with_what_was_near",
        "test_bad_input_is_one_line_with_the_right_exit_code_and_no_file",
        "test_a_mistake_is_one_line_and_starts_nothing",
        "test_2_comes_before_5_4_and_3",
    ),
    3: (
        "test_workloads_that_go_wrong_are_failed_rows_beside_a_good_one",
        "test_a_case_that_fails_is_a_line_an_entry_and_exit_3",
        "test_whole_results_are_exit_0_and_damaged_ones_exit_3",
        "test_what_a_killed_worker_was_asked_is_asked_once_more_then_it_is_a_row",
    ),
    4: (
        "test_runs_that_hold_nothing_to_compare_are_exit_4",
        "test_selected_cases_that_cannot_be_compared_do_not_pass",
    ),
    5: (
        "test_a_keyword_that_matches_nothing_is_exit_5",
        "test_bad_input_is_one_line_with_the_right_exit_code_and_no_file",
    ),
    70: ("test_an_unexpected_error_is_one_line_and_exit_70",),
    130: (
        "test_an_interrupt_is_exit_130",
        "test_ctrl_c_keeps_everything_says_how_to_go_on_and_exits_with_130",
        "test_ctrl_c_during_a_piece_keeps_what_was_seen_and_the_rest_is_done_later",
    ),
    141: ("test_a_reader_that_goes_away_is_no_error",),
}
"""By the code that the program ends with."""
