"""Every quirk of RunPod's SDK, and the flow of one job between it and the server."""
