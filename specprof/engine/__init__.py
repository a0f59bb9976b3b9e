"""What is measured: a vLLM that is started here, a server that runs already, or a simulated one."""
