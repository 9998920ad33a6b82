"""What to do about each finding, in words for whoever deploys the image."""

from __future__ import annotations

ADVICE: dict[str, str] = {
    "cpu_only": (
        "Ollama found no GPU and runs on the CPU. Where there should be one: check the driver, the container's access "
        "to the GPU, and that OLLAMA_LLM_LIBRARY names an existing library directory exactly."
    ),
    "partly_on_cpu": (
        "Part of the model is not in video memory: take a smaller context (OLLAMA_CONTEXT_LENGTH), a smaller "
        "quantization, or a GPU with more memory."
    ),
    "jit_suspected": (
        "Kernels were very likely compiled at run time, because cuda_v13 carries PTX only: use cuda_v12 "
        "(OLLAMA_LLM_LIBRARY=cuda_v12, driver 550 or later), or keep CUDA_CACHE_PATH on storage that outlives the "
        "container."
    ),
    "ptx_only_backend": (
        "cuda_v13 was chosen, whose kernels are compiled at first use; this start found them cached or needed few. "
        "OLLAMA_LLM_LIBRARY=cuda_v12 does not depend on that."
    ),
    "first_prefill_slow": (
        "The first prompt took far longer than its length explains: kernels were loaded or compiled then. Send one "
        "short prompt before the worker takes jobs."
    ),
    "downloaded_at_boot": ("The model was downloaded during the start: put it on a network volume or into the image."),
    "slow_read": (
        "The weights came in at the speed of a single reader: have the file on local disk, or let several readers "
        "bring it into the page cache while the server starts."
    ),
    "slow_discovery": (
        "Ollama starts several processes for each backend library it finds: keep one, with "
        "OLLAMA_LLM_LIBRARY=cuda_v12 and OLLAMA_VULKAN=0, or leave the others out of the image."
    ),
    "slow_process_start": (
        "Ollama needed long to its first log line: leave the mlx_* libraries out of the image, as every ollama process "
        "loads them. An image still being read from the network looks the same."
    ),
    "store_walk": (
        "Ollama looked through its whole store: set OLLAMA_NOPRUNE=1, which also keeps it from deleting files on a "
        "shared volume."
    ),
    "slow_schedule": (
        "Before the runner started, Ollama asked for the GPU's free memory in child processes once more: one backend "
        "library instead of several (OLLAMA_LLM_LIBRARY=cuda_v12) makes that shorter."
    ),
    "fit": (
        "The runner tried out whether the model fits: LLAMA_ARG_FIT=off skips that, if model and context surely fit."
    ),
    "warmup": (
        "The runner warmed up with an empty run, beside the test decode it does anyway: from Ollama 0.32.14 on, "
        "`warmup = false` under `[*]` in /etc/llama.cpp/config.ini turns it off."
    ),
    "projector": ("A vision projector was loaded: if no job sends images, use the model without its projector layer."),
    "mmap_disabled": (
        "Ollama gave up mapping the file because the container's memory looked full, where page cache counts as used: "
        "raise the memory limit, or set use_mmap=true in the model's parameters."
    ),
    "large_context": (
        "The context is as large as the GPU allows, which costs memory and time: set OLLAMA_CONTEXT_LENGTH to what "
        "the jobs need."
    ),
    "loaded_again": (
        "The model was loaded again although it was loaded: requests whose num_ctx, num_batch or other runner options "
        "differ from the first load's make Ollama do that. Set such options for the server, not per request."
    ),
    "unexplained_gap": (
        "No event explains this time: either nobody had asked for anything yet, or the image does something here that "
        "its log does not tell, such as downloads, sleeps or polling."
    ),
}
