"""Development only, never in the image: Ollama's HTTP API over llama.cpp, to stand where `ollama serve` stands."""
