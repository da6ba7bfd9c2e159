"""Who waits, who runs, and how much at once. Pure: no tensors, threads, clocks or I/O."""
