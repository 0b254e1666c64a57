"""Long tests that start servers."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.mark_long import EVERY, FIRST, Long

WITH_SERVERS: Final[Mapping[str, Sequence[Long]]] = {
    "chaos/test_audit_hostile.py": [
        Long(
            "test_chaos.py audits hostile cases of a run, too",
            ["test_a_seed_draws_the_same_cases_and_every_kind"],
        ),
    ],
    "chaos/test_chaos.py": [
        Long(
            "the example [short] has the same faults for a few seconds",
            ["test_no_job_is_lost_duplicated_or_foreign_when_parts_are_killed[long]"],
        ),
        Long(
            "test_lane_worker.py has a worker in a cluster without faults",
            ["test_no_job_is_lost_duplicated_or_foreign_when_parts_are_killed[cluster]"],
            in_ci=False,
        ),
    ],
    "fuzz/test_fuzz.py": [
        Long(
            "the example [short] has fewer cases of the same kinds",
            ["test_no_random_or_hostile_input_harms_a_worker[long]"],
            in_ci=False,
        ),
    ],
    "integration/test_cli.py": [
        Long(
            "test_submitted_jobs_can_be_shown_and_cancelled; test_records.py reads such records",
            [
                "test_an_unreadable_record_hides_no_other_job",
                "test_unknown_jobs_are_reported_after_the_known_ones",
                "test_wait_warns_about_missing_workers_only_if_a_job_needs_one",
                "test_purged_jobs_can_be_queued_again",
            ],
        ),
        Long(
            "tests of single commands stay; these run six to twelve each",
            [
                "test_submit_passes_the_options_for_images_and_latents_to_the_job",
                "test_every_answer_can_be_json",
                "test_tenants_sets_weights_and_limits_and_lists_them",
                "test_a_command_without_anything_to_list_says_so_on_standard_error",
            ],
        ),
        Long(
            "one of the commands stays",
            [
                "test_a_job_that_has_ended_is_not_cancelled",
                "test_a_wrong_option_of_a_job_is_explained",
            ],
            but=[FIRST],
        ),
    ],
    "integration/test_compile_ahead.py": [
        Long(
            "tests/unit/engine/test_executable_cache.py stores programs and loads them",
            [
                "test_a_worker_compiles_nothing_that_was_compiled_ahead",
                "test_a_worker_with_streams_compiles_nothing_that_was_compiled_ahead",
            ],
            in_ci=False,
        ),
        Long("one error stays", ["test_an_error_is_one_line_that_names_the_value"], but=[FIRST]),
    ],
    "integration/test_contact_sheet.py": [
        Long(
            "the same from a folder stays",
            [
                "test_a_sheet_reads_ranges_of_a_large_archive_in_s3",
            ],
        ),
        Long(
            "one of the formats stays",
            ["test_the_card_shows_the_first_images_of_some_shards"],
            but=[FIRST],
        ),
    ],
    "integration/test_continuous_worker.py": [
        Long(
            "test_images_equal_those_of_a_worker_with_whole_batches",
            [
                "test_jobs_of_many_lengths_and_two_shapes_make_exactly_their_images",
            ],
        ),
        Long(
            "test_jobs_of_a_killed_worker_are_finished_by_the_next, and test_worker_process.py",
            [
                "test_a_deadly_job_runs_alone_from_its_third_delivery_on",
                "test_a_hanging_stream_ends_the_worker_and_counts_only_its_own_job",
                "test_sigterm_requeues_what_has_not_started_and_loses_nothing",
                "test_a_cancelled_job_leaves_its_slot_while_its_neighbours_go_on",
            ],
        ),
        Long(
            "test_previews.py",
            ["test_previews_and_progress_come_from_a_job_s_own_slot"],
        ),
    ],
    "integration/test_delivery_loop.py": [
        Long(
            "the same with 300 addresses stays",
            ["test_300_spellings_of_a_hanging_host_do_not_delay_a_receiver_that_is_new"],
        ),
    ],
    "integration/test_dispatcher.py": [
        Long(
            "tests/unit/test_batching.py has the rules",
            [
                "test_a_worker_fills_its_batches_with_jobs_of_like_step_counts",
                "test_a_job_without_steps_shares_a_batch_with_jobs_of_the_default_steps",
                "test_images_left_over_from_a_batch_decide_what_joins_them",
            ],
        ),
        Long(
            "tests/unit/test_prefetch_timer.py",
            ["test_at_most_one_batch_is_prefetched_and_only_late"],
        ),
    ],
    "integration/test_doctor.py": [
        Long(
            "the refusals read the same model",
            [
                "test_a_model_that_fits_the_devices_passes",
            ],
        ),
        Long(
            "one of the refusals, and one of the faults, stays",
            [
                "test_each_fault_is_named",
                "test_what_a_start_would_refuse_is_found_without_a_weight",
            ],
            but=[FIRST],
        ),
        Long(
            "test_a_producer_sees_its_workers_and_their_store runs the command",
            ["test_the_metadata_server_is_asked"],
        ),
    ],
    "integration/test_documents.py": [
        Long(
            "their blocks are few, and other tests run them",
            [
                "test_the_examples_of_a_document_run_in_order[docs/deploy-tpu-vm.md]",
                "test_the_examples_of_a_document_run_in_order[docs/reliability.md]",
            ],
        ),
        Long(
            "the README and test_examples.py, which run the same commands and calls",
            [
                "test_the_examples_of_a_document_run_in_order[docs/callbacks.md]",
                "test_the_examples_of_a_document_run_in_order[docs/client.md]",
                "test_the_examples_of_a_document_run_in_order[docs/datasets.md]",
                "test_the_examples_of_a_document_run_in_order[docs/operations.md]",
                "test_the_examples_of_a_document_run_in_order[docs/testing.md]",
            ],
        ),
    ],
    "integration/test_end_to_end.py": [
        Long(
            "the other tests of the module make images with the same model",
            ["test_images_show_what_their_prompts_describe"],
        ),
        Long(
            "one of the formats stays",
            ["test_other_formats_are_stored_in_that_format"],
            but=[FIRST],
        ),
    ],
    "integration/test_examples.py": [
        Long(
            "test_client.py has the asyncio client",
            [
                "test_async_submit_prints_every_job",
            ],
        ),
        Long(
            "test_bulk_cli.py makes the same dataset; test_fake_fleet.py tests the twin",
            [
                "test_dataset_is_made_verified_and_found_finished_when_repeated",
                "test_the_example_with_a_fake_fleet_passes_without_a_fleet",
            ],
        ),
    ],
    "integration/test_exporter.py": [
        Long(
            "test_prometheus_learns_that_redis_hangs_before_it_gives_up asks once",
            ["test_prometheus_learns_that_the_name_of_redis_is_not_resolved_before_it_gives_up"],
        ),
    ],
    "integration/test_failures.py": [
        Long(
            "test_hung_devices_end_their_worker_and_its_jobs_run_elsewhere, which hangs once",
            ["test_a_prompt_that_hangs_every_device_is_given_up_and_fails_no_other_job"],
        ),
        Long(
            "test_worker_process.py has a frozen worker, whose lease is lost",
            ["test_a_worker_that_lost_its_lease_drops_its_batch_and_takes_new_work"],
        ),
        Long(
            "test_a_worker_with_failing_devices_takes_no_work_until_they_are_healthy",
            [
                "test_a_job_that_fails_healthy_devices_is_retried_twice_and_then_a_dead_letter",
                "test_a_quarantined_worker_leaves_the_queue_to_healthy_workers",
                "test_a_store_that_denies_everything_quarantines_the_worker_and_fails_no_job",
                "test_a_worker_that_starts_waits_for_a_store_that_is_unavailable",
            ],
        ),
    ],
    "integration/test_hostile_messages.py": [
        Long(
            "test_each_hostile_message_ends_alone",
            [
                "test_a_hostile_message_before_any_other_is_refused_by_a_worker_that_starts",
                "test_a_workflow_that_breaks_costs_its_own_job_at_most",
            ],
        ),
        Long(
            "test_a_newer_message_that_cannot_be_postponed_costs_only_this_message",
            ["test_a_newer_message_waits_for_a_newer_worker_until_its_time_is_over"],
        ),
        Long(
            "one of the messages stays",
            ["test_who_waits_for_a_task_that_can_be_no_job_is_told"],
            but=[FIRST],
        ),
    ],
    "integration/test_ids_in_use.py": [
        Long(
            "the same with a queued job stays",
            [
                "test_a_message_of_plain_celery_leaves_a_running_job_with_its_id_alone",
            ],
        ),
        Long(
            "one of the messages stays",
            [
                "test_a_message_of_plain_celery_leaves_a_queued_job_with_its_id_alone",
            ],
            but=[FIRST],
        ),
    ],
    "integration/test_image_expiry.py": [
        Long(
            "the same in a folder stays",
            ["test_workers_delete_the_images_of_a_job_when_its_time_is_over[s3]"],
        ),
    ],
    "integration/test_images_in_hand.py": [
        Long(
            "test_a_job_starts_from_an_image_in_hand_and_keeps_what_the_mask_keeps uploads, too",
            [
                "test_commands_upload_and_save_images",
                "test_images_of_s3_are_read_saved_and_shared_by_a_client_that_knows_only_redis",
            ],
        ),
    ],
    "integration/test_input_images.py": [
        Long(
            "test_a_worker_runs_jobs_with_input_images_without_delaying_others",
            ["test_jobs_on_a_slow_server_do_not_delay_another_tenant"],
        ),
    ],
    "integration/test_job_listing.py": [
        Long("other tests of the module filter through the client", ["test_the_command_filters"]),
    ],
    "integration/test_job_loras.py": [
        Long(
            "test_lora_queues.py moves the message, without worker processes",
            ["test_a_worker_without_the_lora_leaves_the_job_to_one_that_holds_it"],
        ),
    ],
    "integration/test_lane_faults.py": [
        Long(
            "test_lanes.py moves slots, test_lane_claims.py kills a master",
            ["test_no_accepted_job_is_lost_or_ends_twice_while_masters_die_and_slots_move"],
        ),
    ],
    "integration/test_lane_worker.py": [
        Long(
            "test_a_worker_ends_jobs_of_every_lane_calls_back_and_drains has no outage",
            ["test_a_worker_goes_on_when_a_master_is_killed"],
            in_ci=False,
        ),
    ],
    "integration/test_lanes.py": [
        Long(
            "test_a_slot_that_moves_as_a_whole_takes_its_jobs_along changes the master too",
            ["test_a_killed_master_loses_no_job"],
        ),
    ],
    "integration/test_many_tenants.py": [
        Long(
            "test_fairness.py has shares of few tenants",
            [
                "test_very_many_tenants_get_equal_shares_in_the_long_run",
                "test_the_accounts_of_very_many_tenants_stay_small",
            ],
        ),
    ],
    "integration/test_model_switcher.py": [
        Long(
            "test_work_in_flight_is_finished_before_a_switch starts, switches and ends, too",
            [
                "test_jobs_of_every_model_are_made_and_one_model_at_a_time_is_loaded",
                "test_jobs_that_name_no_model_get_the_first",
                "test_a_worker_that_dies_ends_the_process_with_its_code",
                "test_another_worker_that_switches_to_a_model_keeps_this_one_back",
                "test_the_watchdog_of_systemd_is_fed_during_a_switch",
            ],
        ),
    ],
    "integration/test_package.py": [
        Long(
            "`make types` checks the package and these tests with the same annotations",
            ["test_type_checks_accept_a_users_program_and_find_each_wrong_parameter"],
        ),
    ],
    "integration/test_preemption.py": [
        Long(
            "one of the answers, and a preempted host with work, stay",
            ["test_a_platform_without_a_usable_answer_disturbs_no_work"],
            but=[FIRST],
        ),
        Long(
            "test_jobs_of_a_preempted_host_are_requeued_at_once_and_run_elsewhere",
            [
                "test_an_idle_worker_leaves_a_preempted_host_too",
                "test_the_preemption_notice_cuts_a_drain_short",
            ],
        ),
    ],
    "integration/test_prompt_weighting.py": [
        Long(
            "the same with a job stays",
            ["test_a_worker_that_reads_no_weights_leaves_the_shard_to_one_that_does"],
        ),
    ],
    "integration/test_redis_variants.py": [
        Long(
            "test_waiting.py and test_worker_process.py restart Redis",
            [
                "test_a_sentinel_failover_loses_no_job",
                "test_a_worker_survives_a_busy_server_on_a_unix_socket",
            ],
        ),
        Long(
            "one of the forms stays",
            ["test_a_password_over_a_unix_socket_may_be_an_option"],
            but=[FIRST],
        ),
    ],
    "integration/test_refusals.py": [
        Long(
            "test_a_write_that_is_retried_forever_waits_until_redis_takes_it",
            ["test_running_jobs_succeed_after_redis_took_no_writes_for_a_while"],
        ),
        Long(
            "the same with a plain Redis stays",
            [
                "test_celery_also_sends_the_password_of_the_sentinels",
                "test_connection_errors_show_no_password[sentinel://:pw@127.0.0.1:1/fleet"
                "?sentinel_password=hunter2-no Sentinel of 127.0.0.1]",
            ],
        ),
    ],
    "integration/test_secrets.py": [
        Long(
            "test_the_password_of_redis_is_shown_nowhere",
            ["test_the_password_of_sentinels_is_shown_nowhere"],
        ),
    ],
    "integration/test_server_check.py": [
        Long(
            "one of the rights stays",
            ["test_a_user_with_too_few_rights_is_refused"],
            but=[FIRST],
        ),
    ],
    "integration/test_split_denoising.py": [
        Long(
            "unit/engine/test_ensemble.py has the networks, unit/test_split_denoising.py the jobs",
            [EVERY],
        ),
    ],
    "integration/test_start_attempt.py": [
        Long(
            "test_fleet_status.py drains a worker",
            [
                "test_a_draining_worker_cancels_jobs_with_a_cancel_request_instead_of_requeueing_them"
            ],
        ),
    ],
    "integration/test_traces.py": [
        Long(
            "test_the_spans_of_a_job_are_in_the_trace_of_the_program_that_submitted_it",
            [
                "test_the_delivery_of_a_callback_at_the_start_is_below_the_submission",
            ],
        ),
        Long(
            "test_the_spans_of_a_job_are_in_the_trace_of_the_program_that_submitted_it",
            [
                "test_the_deliveries_of_its_callbacks_are_in_the_trace_of_a_job",
                "test_a_collector_that_is_away_disturbs_no_job",
            ],
        ),
    ],
    "integration/test_versions.py": [
        Long(
            "test_a_worker_of_the_release_does_the_jobs_of_this_producer, the other way round",
            [
                "test_this_worker_does_the_jobs_of_a_producer_of_the_release",
            ],
        ),
        Long(
            "one producer and one worker of the release, one job and one dataset, stay",
            [
                "test_both_workers_drain_one_queue_of_both_producers",
                "test_a_rolling_upgrade_and_back_under_load_loses_and_repeats_nothing",
                "test_a_dataset_of_the_release_gets_a_receiver_by_the_same_command",
                "test_a_worker_of_the_release_makes_no_dataset_that_starts_from_images",
            ],
        ),
    ],
    "integration/test_waiting.py": [
        Long(
            "tests of outages that end before the timeout stay",
            [
                "test_an_outage_that_lasts_until_the_timeout_is_an_error_of_redis",
                "test_a_poll_of_ten_thousand_jobs_is_one_round_trip",
            ],
        ),
    ],
    "integration/test_webhook_test.py": [
        Long(
            "test_the_answer_of_the_receiver_is_printed",
            [
                "test_a_tenant_signs_with_its_own_secret_only",
                "test_an_address_that_answered_410_is_tested_and_stays_as_it_was",
            ],
        ),
    ],
    "integration/test_worker_process.py": [
        Long(
            "test_chaos.py kills Redis, too",
            ["test_a_restart_of_redis_loses_no_job_and_counts_no_delivery"],
        ),
        Long(
            "test_sigterm_requeues_jobs_that_have_not_started_and_loses_none",
            [
                "test_jobs_that_outlast_the_drain_time_are_requeued",
                "test_sigterm_requeues_claimed_jobs_that_are_not_on_the_devices",
                "test_sigterm_while_redis_is_away_ends_the_worker_and_loses_no_job",
                "test_the_shutdown_command_of_celery_requeues_jobs_too",
                "test_a_second_signal_requeues_at_once",
            ],
        ),
        Long(
            "test_a_prompt_that_kills_its_worker_fails_after_max_deliveries",
            ["test_a_prompt_that_kills_its_workers_fails_no_other_job_of_its_batch"],
        ),
    ],
    "integration/test_worker_start.py": [
        Long(
            "tests of other settings stay",
            [
                "test_a_hub_that_cannot_be_reached_is_a_temporary_failure",
                "test_a_wrong_password_is_a_wrong_setting",
                "test_a_worker_that_is_stopped_while_it_reads_its_model_ends_with_success",
            ],
        ),
        Long(
            "one of the settings stays",
            [
                "test_what_cannot_be_reached_at_the_start_is_a_temporary_failure",
                "test_a_wrong_setting_ends_the_start_with_one_sentence_and_a_non_zero_code",
                "test_settings_that_need_no_connection_are_refused_before_celery_starts",
            ],
            but=[FIRST],
        ),
    ],
    "integration/test_fleet_status.py": [
        Long(
            "a drained worker and a killed one stay; tests/unit/test_log_format.py has the log",
            [
                "test_a_worker_that_fails_says_so",
                "test_sigterm_makes_a_worker_unready",
                "test_the_log_can_be_json",
            ],
        ),
    ],
    "integration/test_operator.py": [
        Long(
            "test_dead_letters_are_listed_shown_redriven_and_dropped runs such commands",
            [
                "test_a_refused_callback_is_listed_with_its_reason_and_can_be_replayed",
                "test_the_final_callback_of_a_job_can_be_replayed_after_its_delivery",
            ],
        ),
    ],
    "integration/test_job_deletion.py": [
        Long(
            "other tests of the module delete through the client",
            [
                "test_a_job_with_the_id_of_a_deleted_one_is_the_one_that_runs",
            ],
        ),
    ],
    "integration/test_demo.py": [
        Long(
            "test_the_demo_makes_every_image_and_a_contact_sheet",
            [
                "test_a_worker_that_cannot_start_ends_the_demo_with_the_error",
            ],
        ),
        Long(
            "the same with --serve stays",
            ["test_the_curl_line_of_the_demo_makes_an_image[False]"],
        ),
    ],
    "integration/test_connections.py": [
        Long(
            "other tests of the module count connections of clients",
            [
                "test_a_worker_has_few_connections_while_it_is_idle_and_while_it_works",
            ],
        ),
    ],
    "integration/test_forgotten_models.py": [
        Long(
            "other tests of the module forget and renew without a worker process",
            [
                "test_a_worker_renews_its_own_model_and_forgets_those_of_others",
            ],
        ),
    ],
    "integration/test_shared_texts.py": [
        Long("unit/test_shared_texts.py and test_flux2_klein_texts.py have its parts", [EVERY]),
    ],
    "integration/test_flux1_worker.py": [Long("test_flux1_engine.py runs it", [EVERY])],
    "integration/test_stable_diffusion_3_worker.py": [
        Long("test_stable_diffusion_3_engine.py runs it", [EVERY]),
    ],
    "integration/test_flux2_klein_worker.py": [
        Long("test_flux2_klein_engine.py runs it", [EVERY]),
    ],
    "integration/test_z_image_worker.py": [Long("test_z_image_engine.py runs it", [EVERY])],
    "integration/test_worker_cli.py": [
        Long(
            "test_a_worker_keeps_the_name_that_its_user_gives",
            [
                "test_two_workers_of_one_host_are_two_nodes",
            ],
        ),
    ],
}
