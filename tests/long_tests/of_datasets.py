"""Long tests of datasets, which start servers."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.mark_long import FIRST, Long

OF_DATASETS: Final[Mapping[str, Sequence[Long]]] = {
    "integration/test_bulk_again.py": [
        Long(
            "one of the formats, and one of the commands, stays",
            [
                "test_only_samples_that_are_missing_or_damaged_are_generated_again",
                "test_resuming_a_run_while_files_are_deleted_loses_no_shard",
            ],
            but=[FIRST],
        ),
        Long(
            "test_a_shard_that_finished_after_it_was_verified_is_not_repaired repairs, too",
            ["test_an_interrupted_repair_leaves_no_finished_shard_without_its_files"],
        ),
    ],
    "integration/test_bulk_cli.py": [
        Long(
            "test_a_file_of_prompts_becomes_a_verified_dataset runs the commands",
            [
                "test_a_sample_is_of_different_rows_and_says_how_many_images_they_have",
                "test_unplanned_files_are_reported_and_not_deleted",
                "test_the_same_command_resumes_a_cancelled_run",
                "test_ctrl_c_ends_the_view_and_not_the_run",
                "test_a_plan_is_written_to_s3_and_missing_rights_are_reported",
            ],
        ),
        Long(
            "test_a_file_of_prompts_becomes_a_verified_dataset runs the commands",
            [
                "test_commands_warn_if_no_worker_is_alive",
                "test_commands_report_a_name_that_is_no_run",
                "test_every_shard_is_made_once_by_two_commands_at_once_after_a_killed_one",
            ],
        ),
    ],
    "integration/test_bulk_destinations.py": [
        Long(
            "tests/unit/bulk_worker/test_destinations.py has the rules",
            ["test_a_worker_does_not_connect_to_an_endpoint_that_only_the_producer_names"],
        ),
    ],
    "integration/test_bulk_emptied.py": [
        Long(
            "test_bulk_again.py has samples that are missing",
            [
                "test_a_shard_that_runs_while_its_folder_is_emptied_is_in_no_other_dataset",
                "test_the_same_command_makes_a_dataset_again_that_was_deleted_while_it_was_made",
                "test_files_of_another_format_do_not_count_as_finished",
            ],
        ),
        Long(
            "one set of parameters stays",
            ["test_verify_finds_images_of_other_parameters_and_repair_replaces_them"],
            but=[FIRST],
        ),
    ],
    "integration/test_bulk_images.py": [
        Long(
            "test_rows_of_a_table_start_from_files_and_addresses has rows with images",
            [
                "test_more_rows_than_fit_in_memory_come_one_window_after_another_and_survive_kills",
                "test_a_store_that_lacks_an_uploaded_image_fails_the_row_and_retry_makes_it",
            ],
        ),
    ],
    "integration/test_bulk_inputs.py": [
        Long(
            "a dry run and tests/unit/bulk/test_planning.py plan the same inputs",
            [
                "test_standard_input_is_planned_as_a_file_of_the_given_type",
                "test_options_of_latents_hold_for_all_rows_and_none_leaves_latents",
            ],
        ),
        Long(
            "inputs in S3, as the hub; importing `datasets` takes long",
            [
                "test_a_dataset_of_the_hub_is_read_as_a_stream_with_its_images",
                "test_image_files_of_the_hub_are_read_and_its_failure_in_the_middle_is_one_sentence",
                "test_paths_of_other_files_in_a_dataset_of_the_hub_are_never_opened",
                "test_an_address_that_is_none_is_refused[hf://datasets/a/b c]",
            ],
        ),
        Long(
            "test_objects_in_s3_are_read_one_by_one_by_pattern_and_by_prefix reads the same store",
            ["test_a_dataset_below_its_input_in_s3_is_not_read_as_input"],
        ),
    ],
    "integration/test_bulk_loras.py": [
        Long(
            "test_lora_queues.py moves such messages",
            [
                "test_a_worker_without_the_loras_leaves_the_shard_to_one_that_holds_them",
            ],
        ),
        Long(
            "test_rows_use_the_loras_that_they_name, with the fake engine",
            ["test_the_shapes_of_rows_with_the_outline_lora_are_hollow"],
        ),
    ],
    "integration/test_bulk_lost.py": [
        Long(
            "test_a_lost_shard_is_made_without_a_waiting_producer",
            [
                "test_a_cancelled_run_continues_if_its_restart_died_before_sending",
                "test_a_shard_with_two_messages_is_made_once",
            ],
        ),
        Long(
            "test_a_lost_shard_is_made_without_a_waiting_producer, without waiting for a lease",
            [
                "test_a_shard_held_by_a_frozen_worker_is_not_sent_twice",
                "test_a_result_that_a_failover_lost_is_recorded_from_the_commit_marker",
                "test_recovery_finishes_a_restarted_run_with_all_shards_finished",
            ],
        ),
        Long(
            "one of the ways to continue stays",
            [
                "test_the_same_command_and_retry_failed_send_lost_shards",
                "test_a_missing_summary_of_a_finished_run_is_written",
            ],
            but=[FIRST],
        ),
    ],
    "integration/test_bulk_reading.py": [
        Long(
            "test_webdataset_reads_the_shards, and pandas; importing `datasets` takes long",
            [
                "test_hugging_face_datasets_reads_the_folder_by_its_card",
                "test_every_format_passes_verify_with_regenerated_images",
            ],
        ),
    ],
    "integration/test_bulk_storage.py": [
        Long(
            "test_storage_full.py has disks without space",
            [
                "test_a_run_continues_when_disk_space_is_available_again_or_on_another_host",
            ],
        ),
        Long(
            "one of the formats stays",
            ["test_a_dataset_is_generated_into_a_bucket"],
            but=[FIRST],
        ),
        Long(
            "test_bulk_making.py has stores that are unavailable, without a worker process",
            ["test_a_store_that_is_unavailable_for_a_while_only_delays_the_run"],
        ),
    ],
    "integration/test_bulk_worker.py": [
        Long(
            "test_bulk_making.py makes shards without a worker process",
            [
                "test_images_of_another_plan_are_not_reused",
                "test_a_run_with_too_many_failures_stops",
                "test_the_message_of_an_ended_shard_is_deleted",
                "test_a_run_for_a_model_that_no_worker_has_fails_after_some_attempts",
                "test_shards_are_left_to_a_living_worker_that_can_write_them_however_busy_it_is",
                "test_two_hosts_share_a_run_of_few_rows",
            ],
        ),
        Long(
            "test_a_draining_worker_requeues_its_shards_and_stores_checkpoints goes on from them",
            [
                "test_a_run_with_killed_workers_has_the_same_bytes",
                "test_samples_count_before_their_checkpoint_and_lost_samples_count_once",
                "test_shards_of_a_frozen_worker_are_taken_over_and_its_late_writes_change_nothing",
                "test_a_row_that_kills_workers_is_found_and_the_others_are_generated",
                "test_a_host_that_cannot_make_a_shard_requeues_it_for_other_workers",
            ],
        ),
        Long(
            "one of the formats stays",
            ["test_files_and_parquet_hold_the_same_samples"],
            but=[FIRST],
        ),
    ],
    "integration/test_run_callbacks.py": [
        Long(
            "test_who_waits_is_told_from_the_start_to_the_end has a worker and a receiver; "
            "test_run_events.py has the same cases without processes",
            [
                "test_the_same_command_again_tells_nothing_and_failed_rows_tell_another_end",
                "test_a_worker_that_dies_between_its_last_record_and_the_event_loses_nothing",
                "test_the_end_waits_for_a_summary_that_takes_longer_than_searches_wait",
                "test_a_worker_that_dies_while_it_tells_is_followed_by_another_with_the_same_id",
                "test_a_receiver_that_is_away_for_a_while_is_told_everything",
                "test_a_redis_that_is_killed_and_started_again_loses_no_event",
                "test_workers_that_are_killed_all_the_time_tell_each_event_once_in_effect",
                "test_a_run_that_stalls_and_goes_on_is_told_as_stalled_and_ended",
                "test_a_cancelled_run_is_told_and_told_again_when_it_is_resumed",
                "test_the_run_of_appended_rows_has_a_receiver_of_its_own",
                "test_secrets_of_the_tenant_sign",
                "test_an_address_that_the_operator_does_not_allow_is_given_up_and_listed",
            ],
        ),
    ],
}
