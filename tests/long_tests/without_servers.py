"""Long tests that start no server."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.mark_long import EVERY, FIRST, Long

_KNOWN: Final = "test_a_checkpoint_that_loads_makes_what_diffusers_makes"
_SHAPES: Final = "test_the_weights_have_the_names_and_shapes_of_diffusers"
_NAMED: Final = "test_a_named_checkpoint_makes_equal_images_or_is_refused_in_one_sentence"
ENGINE: Final[Mapping[str, Sequence[Long]]] = {
    "unit/engine/test_attention.py": [
        Long(
            "one way to split the kernel stays",
            ["test_the_tpu_kernel_is_split_over_devices_by_rows_or_by_heads"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_attention_layers.py": [
        Long(
            "one of the three checkpoints stays",
            ["test_every_layer_that_the_programs_compute_is_listed"],
            but=["test_every_layer_that_the_programs_compute_is_listed[older]"],
        ),
    ],
    "unit/engine/test_clip_skip.py": [
        Long("the same in a batch stays", ["test_jobs_with_other_clip_skips_share_a_stream"]),
    ],
    "unit/engine/test_drawn_checkpoints.py": [
        Long(
            "other cases of the same fields, and the three checkpoints of `oracle`",
            [
                *(
                    f"{_NAMED}[{case}]"
                    for case in (
                        "1 no force_zeros",
                        "1 force_zeros is false",
                        "1 force_zeros of no SDXL",
                        "3 added_tokens_decoder",
                        "3 several vectors",
                        "3 several vectors in SDXL",
                        "5 two sets of shards",
                        "7 both encoders project",
                        "8 another eos_token_id",
                        "9 a shorter model_max_length",
                        "9 a shorter model_max_length in SDXL",
                        "13 v_pred and ztsnr",
                        "no transformer layers",
                        "a pair as sample_size",
                        "no sample_size",
                    )
                ),
                *(
                    f"test_a_drawn_checkpoint_makes_equal_images_or_is_refused[{seed}]"
                    for seed in (17, 25, 27, 30)
                ),
            ],
        ),
    ],
    "unit/engine/test_ensemble.py": [
        Long(
            "test_the_base_leaves_the_latents_of_diffusers_with_every_scheduler",
            [
                "test_the_refiner_goes_on_as_that_of_diffusers_with_every_scheduler",
                "test_jobs_with_images_and_with_latents_share_a_batch",
            ],
        ),
    ],
    "unit/engine/test_executable_cache.py": [
        Long(
            "test_the_second_start_compiles_nothing, with one small program",
            [
                "test_a_new_host_loads_every_program_from_the_store_and_generates_equal_images",
            ],
        ),
    ],
    "unit/engine/test_host_plan.py": [
        Long(
            "other tests of the module count the same layers",
            [
                "test_each_further_chunk_of_prompts_needs_keys_and_values_of_every_layer",
                "test_stable_diffusion_in_float32_fits_v2_only_with_two_devices_a_copy",
            ],
        ),
        Long(
            "the times of Stable Diffusion 1.4 stay",
            ["test_the_times_of_a_plan_are_within_15_percent_of_the_compilers"],
            but=[FIRST],
        ),
        Long(
            "test_plan_command.py has a plan with times, and one without",
            ["test_a_plan_has_times_only_where_whole_copies_were_compiled"],
        ),
    ],
    "unit/engine/test_image_models.py": [
        Long(
            "test_known_checkpoints.py has an image of timbrooks/instruct-pix2pix",
            ["test_images_of_both_policies_depend_on_their_own_image_only"],
        ),
    ],
    "unit/engine/test_images_of_diffusers.py": [
        Long(
            "the same of Stable Diffusion 1 and SDXL stays",
            [
                "test_images_equal_those_of_diffusers[newer]",
                "test_images_with_clip_skip_equal_those_of_diffusers[newer-ddim]",
                "test_images_with_guidance_rescale_equal_those_of_diffusers[newer-ddim]",
            ],
        ),
    ],
    "unit/engine/test_host_text_encoder.py": [
        Long(
            "test_its_states_are_those_of_the_devices",
            ["test_images_of_streams_and_of_whole_batches_are_those_of_diffusers"],
            in_ci=False,
        ),
    ],
    "unit/engine/test_control_nets.py": [
        Long(
            "one of the checkpoints stays",
            ["test_jobs_of_unlike_nets_share_a_batch_and_are_the_images_of_diffusers"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_control_net_jobs.py": [
        Long(
            "test_control_nets.py, with the programs of one device",
            ["test_eight_jobs_are_bit_equal_alone_and_near_in_streams_and_on_split_weights"],
            in_ci=False,
        ),
    ],
    "unit/engine/test_init_images.py": [
        Long(
            "one of the three checkpoints stays",
            ["test_images_from_init_images_equal_those_of_diffusers"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_int8_weights.py": [
        Long(
            "test_a_layer_computes_with_the_rounded_matrix_in_the_dtype_of_its_input",
            [
                "test_images_are_those_of_the_rounded_weights_and_near_those_of_diffusers",
                "test_jobs_add_their_lora_to_weights_that_devices_split",
            ],
            in_ci=False,
        ),
        Long(
            "the same of one family stays",
            ["test_devices_hold_what_the_memory_check_counts_split_or_whole"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_job_loras.py": [
        Long(
            "the same in a batch on one device stays",
            [
                "test_mixtures_that_enter_and_leave_a_stream_equal_themselves_alone",
                "test_a_model_on_several_devices_computes_the_same",
            ],
        ),
    ],
    "unit/engine/test_kernel_numerics.py": [
        Long(
            "one size of each way to compute attention stays",
            ["test_attention_is_near_float64_for_scores_of_any_size"],
            but=[
                f"test_attention_is_near_float64_for_scores_of_any_size[{case}]"
                for case in ("40-folded-131-77", "64-flash-256-384", "40-packed-256-77")
            ],
        ),
        Long(
            "one size of each kernel stays",
            [
                "test_the_feed_forward_kernel_is_near_float64",
                "test_the_convolution_kernel_is_near_float64",
            ],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_known_checkpoints.py": [
        Long(
            "the three checkpoints of `oracle`, these two, and test_ensemble.py have their parts",
            [_KNOWN],
            but=[f"{_KNOWN}[nota-ai/bk-sdm-tiny]", f"{_KNOWN}[timbrooks/instruct-pix2pix]"],
            in_ci=False,
        ),
        Long("an SD 1 and an SDXL stay", [_SHAPES], but=[FIRST, f"{_SHAPES}[segmind/SSD-1B]"]),
    ],
    "unit/engine/test_large_convolution.py": [
        Long(
            "one of the shapes stays",
            ["test_the_kernel_normalises_convolves_and_adds", "test_the_kernel_upsamples"],
            but=[
                "test_the_kernel_normalises_convolves_and_adds[128-128-2]",
                "test_the_kernel_upsamples[160-2]",
            ],
        ),
    ],
    "unit/engine/test_load_engine.py": [
        Long(
            "test_weights.py refuses weights that are not finite, before it compiles anything",
            ["test_finite_weights_that_overflow_are_refused_before_the_worker_is_ready"],
        ),
    ],
    "unit/engine/test_merged_loras.py": [
        Long(
            "test_lora.py merges the weights, test_job_loras.py runs LoRA of jobs",
            [EVERY],
            in_ci=False,
        ),
    ],
    "unit/engine/test_mesh.py": [
        Long(
            "test_each_part_of_a_weight_is_read_once splits a weight over devices",
            ["test_devices_that_share_weights_hold_half_and_generate_the_same_images"],
        ),
    ],
    "unit/engine/test_models.py": [
        Long(
            "the same of Stable Diffusion 1 stays",
            ["test_the_unet_and_each_of_its_blocks_compute_the_same_feature_maps"],
            but=["test_the_unet_and_each_of_its_blocks_compute_the_same_feature_maps[older]"],
        ),
    ],
    "unit/engine/test_one_image_at_a_time.py": [
        Long(
            "test_decoded_images_are_those_of_all_slots_at_once",
            ["test_devices_exchange_nothing_for_it"],
        ),
    ],
    "unit/engine/test_outline_lora.py": [
        Long(
            "test_job_loras.py and test_merged_loras.py, with a tiny model",
            [
                "test_the_shapes_of_jobs_with_the_lora_are_hollow_and_those_beside_them_are_not",
                "test_the_images_equal_those_of_diffusers_with_peft",
            ],
        ),
    ],
    "unit/engine/test_shapes_dit.py": [
        Long(
            "test_z_image.py and test_z_image_engine.py, with a tiny model",
            ["test_the_images_of_the_engine_are_those_of_diffusers"],
        ),
    ],
    "unit/engine/test_flow_plan.py": [
        Long(
            "one of the models and hosts stays",
            ["test_the_fewest_devices_that_hold_a_copy_and_an_image_of_1024_are_known"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_t5_tokenizer.py": [
        Long(
            "test_files_are_read_as_transformers_reads_them has the prompts that are written",
            ["test_ids_of_prompts_in_many_scripts_equal_those_of_transformers"],
        ),
    ],
    "unit/engine/test_flux1.py": [
        Long(
            "test_flux1_engine.py has images in a stream",
            [
                "test_images_of_other_configs_are_those_of_diffusers",
                "test_images_that_start_from_an_image_are_those_of_diffusers",
                "test_images_that_are_filled_are_those_of_diffusers",
                "test_images_with_true_cfg_scale_are_those_of_diffusers",
                "test_in_bfloat16_no_part_of_a_block_is_widened",
                "test_whole_images_are_those_of_diffusers",
            ],
            in_ci=False,
        ),
        Long(
            "one of the blocks stays",
            ["test_each_block_computes_the_same_tokens"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_known_flux1.py": [
        Long(
            "test_flux1_engine.py has images of fewer blocks",
            ["test_a_checkpoint_that_loads_makes_what_diffusers_makes"],
            in_ci=False,
        ),
    ],
    "unit/engine/test_flux1_engine.py": [
        Long(
            "the same images in a stream stay",
            [
                "test_images_of_a_whole_batch_are_those_of_diffusers",
                "test_merged_weights_are_those_that_the_lora_of_a_job_stand_for",
                "test_images_with_and_without_a_reference_image_share_a_stream",
                "test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers",
            ],
            in_ci=False,
        ),
    ],
    "unit/engine/test_stable_diffusion_3.py": [
        Long(
            "test_stable_diffusion_3_engine.py has images in a stream",
            [
                "test_images_of_other_configs_are_those_of_diffusers",
                "test_images_that_start_from_an_image_are_those_of_diffusers",
                "test_in_bfloat16_no_part_of_a_block_is_widened",
                "test_t5_that_is_left_out_need_not_be_there",
                "test_the_transformer_reads_the_same_texts_and_computes_the_same_velocity",
                "test_whole_images_are_those_of_diffusers",
            ],
            in_ci=False,
        ),
        Long(
            "one of the blocks stays",
            ["test_each_block_computes_the_same_tokens"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_stable_diffusion_3_engine.py": [
        Long(
            "the same images in a stream stay",
            [
                "test_images_of_a_whole_batch_are_those_of_diffusers",
                "test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers",
                "test_merged_weights_are_those_that_the_lora_of_a_job_stand_for",
            ],
            in_ci=False,
        ),
    ],
    "unit/engine/test_stable_diffusion_3_jobs.py": [
        Long(
            "test_stable_diffusion_3_engine.py has a stream, test_job_loras.py bit-equal jobs",
            [EVERY],
            in_ci=False,
        ),
    ],
    "unit/engine/test_stable_diffusion_3_single_file.py": [
        Long(
            "test_a_file_with_all_parts_makes_the_image_of_diffusers has another file",
            [
                "test_a_file_without_t5_makes_the_image_of_diffusers_where_t5_is_left_out",
                "test_t5_in_a_file_may_be_left_out",
            ],
            in_ci=False,
        ),
    ],
    "unit/engine/test_known_stable_diffusion_3.py": [
        Long(
            "test_stable_diffusion_3_engine.py has images of fewer blocks",
            ["test_a_checkpoint_that_loads_makes_what_diffusers_makes"],
            in_ci=False,
        ),
    ],
    "unit/engine/test_flux2_klein.py": [
        Long(
            "test_flux2_klein_engine.py has images in a stream",
            [
                "test_images_of_other_configs_are_those_of_diffusers",
                "test_whole_images_are_those_of_diffusers",
            ],
        ),
        Long(
            "one of the blocks stays",
            ["test_each_block_computes_the_same_tokens"],
            but=[FIRST],
        ),
        Long(
            "test_each_block_computes_the_same_tokens",
            ["test_blocks_of_full_width_compute_the_same_tokens"],
            in_ci=False,
        ),
    ],
    "unit/engine/test_flux2_klein_engine.py": [
        Long(
            "the same images in a stream stay",
            [
                "test_images_of_a_whole_batch_are_those_of_diffusers",
                "test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers",
                "test_a_distilled_model_has_no_guidance_whatever_the_scale",
                "test_merged_weights_are_those_that_the_lora_of_a_job_stand_for",
            ],
        ),
    ],
    "unit/engine/test_flux2_klein_references.py": [
        Long(
            "the same in a stream stays",
            [
                "test_images_of_a_whole_batch_may_have_reference_images",
                "test_images_with_a_reference_image_are_those_of_diffusers",
            ],
        ),
    ],
    "unit/engine/test_packed_attention.py": [
        Long(
            "one of the shapes and one of the packings stay",
            ["test_the_kernel_is_the_formula", "test_a_layer_with_packed_heads_is_the_same_layer"],
            but=[
                "test_the_kernel_is_the_formula[256-512-128-128-packing1]",
                "test_a_layer_with_packed_heads_is_the_same_layer[packing1-False-True]",
            ],
        ),
        Long(
            "test_each_device_has_tiles_of_its_own",
            ["test_the_kernel_is_split_over_devices_by_heads"],
        ),
    ],
    "unit/engine/test_pipeline.py": [
        Long(
            "other tests of the module run eight devices; test_streams.py runs one",
            ["test_an_image_is_the_same_on_any_number_of_devices"],
        ),
    ],
    "unit/engine/test_row_split.py": [
        Long(
            "test_layers_compute_the_same_on_devices_that_share_weights",
            ["test_a_kernel_takes_the_rows_of_its_device"],
        ),
    ],
    "unit/engine/test_prompt_weighting.py": [
        Long(
            "test_the_unet_attends_to_the_chunks_of_a_prompt_and_to_no_others",
            [
                "test_prompts_of_other_lengths_share_a_batch_and_each_is_bit_equal_to_itself_alone",
                "test_prompts_with_weights_run_in_a_stream",
                "test_a_prompt_without_weights_has_the_states_of_the_plain_prompt_exactly[xl]",
                "test_sdxl_weighs_the_states_of_each_encoder_and_pools_the_first_chunk",
            ],
        ),
    ],
    "unit/engine/test_safety.py": [
        Long(
            "test_the_same_images_are_flagged_as_in_diffusers, without generating them",
            [
                "test_a_flagged_image_is_black_and_reported",
                "test_a_checker_that_is_turned_off_flags_nothing",
            ],
        ),
        Long("one of the sizes stays", ["test_images_are_resized_as_by_pillow"], but=[FIRST]),
    ],
    "unit/engine/test_schedulers.py": [
        Long(
            "one of the spacings stays",
            ["test_every_scheduler_runs_with_any_possible_step_count"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_single_file.py": [
        Long(
            "the first of the models stays",
            ["test_each_key_of_diffusers_has_the_tensor_that_diffusers_finds"],
            but=[FIRST],
        ),
    ],
    "unit/engine/test_streams.py": [
        Long(
            "the other tests of the module run one stream of three slots",
            [
                "test_streams_share_the_executables_of_the_first",
                "test_an_image_of_a_one_slot_stream_is_bit_equal_to_that_of_a_whole_batch",
            ],
        ),
    ],
    "unit/engine/test_textual_inversions.py": [
        Long(
            "the same of Stable Diffusion 1 stays",
            [
                "test_images_equal_those_of_diffusers",
                "test_ids_and_states_equal_those_of_diffusers",
            ],
            but=[
                "test_images_equal_those_of_diffusers[older]",
                "test_ids_and_states_equal_those_of_diffusers[older]",
                "test_ids_and_states_equal_those_of_diffusers[newer]",
            ],
        ),
        Long(
            "test_executable_cache.py",
            ["test_programs_compiled_ahead_are_those_of_a_worker_with_the_same_tokens"],
        ),
    ],
    "unit/engine/test_weights.py": [
        Long(
            "the same of Stable Diffusion 1 stays",
            [
                "test_every_weight_of_the_published_models_is_known[sd21-unet]",
                "test_every_weight_of_the_published_models_is_known[sdxl-unet]",
            ],
        ),
    ],
    "unit/engine/test_z_image.py": [
        Long(
            "one of the configs stays, and test_z_image_engine.py has the images in a stream",
            [
                "test_images_of_other_configs_are_those_of_diffusers",
                "test_each_block_computes_the_same_tokens",
                "test_in_bfloat16_no_part_of_a_block_is_widened",
            ],
            but=[FIRST],
        ),
        Long(
            "test_z_image_engine.py has the images in a stream",
            [
                "test_a_block_of_full_width_computes_the_same_tokens",
                "test_whole_images_are_those_of_diffusers",
                "test_a_guidance_scale_of_zero_is_no_guidance_beside_a_slot_that_has_one",
                "test_images_that_start_from_an_image_are_those_of_diffusers",
            ],
        ),
    ],
    "unit/engine/test_z_image_engine.py": [
        Long(
            "the same images in a stream stay",
            [
                "test_images_of_a_whole_batch_are_those_of_diffusers",
                "test_images_of_weights_that_are_split_over_devices_are_those_of_diffusers",
            ],
        ),
    ],
}
OTHERS: Final[Mapping[str, Sequence[Long]]] = {
    "tpu/test_compiler.py": [
        Long("it needs the TPU compiler, a download of 684 MB; tests/unit interprets", [EVERY]),
    ],
    "tpu/test_convolutions.py": [
        Long("it needs the TPU compiler, a download of 684 MB; tests/unit interprets", [EVERY]),
    ],
    "unit/bulk/test_reading_guide.py": [
        Long(
            "importing `datasets` takes long; its example [png] of a WebDataset stays, and "
            "tests/integration/test_bulk_reading.py reads each format with it",
            [
                "test_datasets_has_each_value_as_it_was_given_beside_its_image",
                "test_the_samples_of_a_webdataset_have_each_value_and_datasets_has_each_column[webp]",
                "test_the_samples_of_a_webdataset_have_each_value_and_datasets_has_each_column[jpeg]",
            ],
        ),
        Long(
            "the example [webdataset] has the same files of metadata",
            ["test_tables_have_each_value_as_it_was_given[files]"],
        ),
    ],
    "unit/bulk/test_sample_features.py": [
        Long(
            "importing `datasets` takes long; late and mixed columns stay",
            ["test_a_dataset_without_extra_columns_has_empty_ones"],
        ),
    ],
    "unit/test_gcloud_commands.py": [
        Long("528 starts of gcloud; tests/unit/test_document_links.py reads the pages", [EVERY]),
    ],
    "unit/test_judge.py": [
        Long(
            "test_each_attribute_is_judged_separately",
            [
                "test_the_judge_is_right_on_at_least_99_in_100_drawn_scenes",
                "test_the_judge_is_right_on_noisy_images",
            ],
        ),
    ],
    "unit/test_plan_command.py": [
        Long(
            "tests/unit/engine/test_host_plan.py has the plans, the other tests the command",
            ["test_a_folder_without_weights_is_planned_as_a_table_and_as_json"],
        ),
    ],
}
