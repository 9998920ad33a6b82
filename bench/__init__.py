"""What is measured, where each clock starts and stops, and the raw event streams of every run."""
