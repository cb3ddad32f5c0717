"""Generated from proto/*.proto by `make gen-proto`; `make check` proves that it is current."""
