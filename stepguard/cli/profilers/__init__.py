"""Commands around profilers: traces of runs and of others, memory, Nsight Systems and Compute."""
