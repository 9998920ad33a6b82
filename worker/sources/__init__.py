"""The places weights can come from."""
