"""specprof: which workloads should get speculative decoding, how much, and can you defend the number you publish?"""

__version__ = "0.1.0"
