"""Options that would change results or promise something that does not happen:
what to do instead -> {option: its default}."""

from __future__ import annotations

from typing import Any

_PARALLEL = (
    "Run replicas of the whole model, one on each device: data_parallel_size=..., or "
    "`quire run --replicas`."
)

REFUSED: dict[str, dict[str, Any]] = {
    _PARALLEL: {
        "pipeline_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "data_parallel_rank": None,
        "data_parallel_start_rank": None,
        "data_parallel_hybrid_lb": False,
        "data_parallel_external_lb": False,
        "data_parallel_multi_port_external_lb": False,
    },
    "On a Ray cluster use `quire run --ray`.": {"engine_use_ray": False, "worker_use_ray": False},
    "Choose the GPU with CUDA_VISIBLE_DEVICES.": {"device_ids": None},
    "quire does not watermark text: leave it out.": {"watermark_config": None},
    "Set max_num_seqs.": {"max_num_active_seqs": None},
    "Requests are never refused because too many wait: limit how many you pass.": {
        "max_num_queued_reqs": None,
        "max_num_queued_tokens": None,
    },
    "quire has no such models or plugins: leave it out.": {
        "engram_config": None,
        "io_processor_plugin": None,
        "diffusion_config": None,
    },
    "Register the class for its architecture: ModelRegistry.register_model(name, class).": {
        "model_class_overrides": {},
    },
    "Put the config.json into the model's folder, in the Hugging Face form.": {
        "hf_config_path": None,
        "config_format": "auto",
        "model_weights": "",
    },
    "Change the model's config with hf_overrides.": {
        "rope_scaling": None,
        "rope_theta": None,
    },
    "Leave it out: how a checkpoint's weights were rounded is read from its own files.": {
        "quantization_config": None,
        "kv_cache_dtype_skip_layers": [],
        "mm_encoder_attn_dtype": None,
        "mm_encoder_fp8_scale_path": None,
        "mm_encoder_fp8_scale_save_path": None,
        "mm_encoder_fp8_scale_save_margin": 1.5,
        "calculate_kv_scales": False,
        "quantization_param_path": None,
    },
    "Leave it out: states of layers are kept in float32.": {
        "mamba_config": None,
        "enable_mamba_cache_stochastic_rounding": False,
        "mamba_cache_philox_rounds": 0,
    },
    "Say in mm_processor_kwargs how much of a video is read (fps, num_frames), or pass the frames "
    "themselves.": {
        "media_io_kwargs": {},
        "video_pruning_rate": None,
        "video_pruning_method": "evs",
    },
    "Use embed() of a model that embeds.": {"mm_encoder_only": False},
    "Set max_model_len to the window's size instead.": {"disable_sliding_window": False},
    "Use a smaller model, a 16-bit dtype or a smaller KV pool (kv_cache_memory_bytes).": {
        "cpu_offload_gb": 0,
        "cpu_offload_params": set(),
        "offload_backend": "auto",
        "offload_group_size": 0,
        "offload_num_in_group": 1,
        "offload_prefetch_step": 1,
        "offload_params": None,
    },
    "Use speculative_config={'method': 'ngram', ...}: tokens are guessed from a row's own text.": {
        "speculative_model": None,
        "num_speculative_tokens": None,
        "spec_method": None,
        "spec_model": None,
        "spec_tokens": None,
    },
    "Merge the adapter into the weights and load those.": {
        "default_mm_loras": None,
        "enable_lora_bias": False,
        "enable_prompt_adapter": False,
        "enable_tower_connector_lora": False,
        "enable_mixed_moe_lora_format": False,
        "enable_moe_shared_loras": False,
        "max_lora_cls_labels": None,
    },
    "An adapter has the model's dtype, and changes every module that its tensors name.": {
        "lora_dtype": "auto",
        "lora_target_modules": None,
    },
    "Name one of quire's parsers in reasoning_parser.": {
        "reasoning_parser_plugin": None,
    },
    "Pass text or token ids.": {"enable_prompt_embeds": False},
    "Only token ids, text and logprobs are returned.": {
        "enable_return_routed_experts": False,
        "return_sampling_mask": False,
        "aux_output_config": None,
    },
    "Noise comes from the request's seed alone; set SamplingParams.seed to repeat a text.": {
        "use_fp64_gumbel": False,
        "enable_trace_replay": False,
    },
    "Exchange weights by name: LLM.collective_rpc with a function that calls load_weights.": {
        "weight_transfer_config": None,
        "sleep_preserve_parameter_names": [],
    },
    "quire runs no classes of its caller inside the engine.": {
        "worker_cls": "auto",
        "worker_extension_cls": "",
        "scheduler_cls": None,
        "additional_config": {},
    },
    "KV blocks stay inside one LLM.": {
        "kv_transfer_config": None,
        "kv_events_config": None,
        "ec_transfer_config": None,
        "tokens_only": False,
    },
    "Catch EngineError: its .outputs hold what was finished.": {
        "enable_fault_tolerance": False,
        "fault_tolerance_config": None,
    },
}
