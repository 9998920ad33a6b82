"""A Runpod Serverless worker that makes Ollama answer its first token in seconds."""

__version__ = "0.1.0"
