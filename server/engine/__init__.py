"""The engine: who waits, who runs, and the one thread that steps the model. Knows no gRPC and no Prometheus."""
