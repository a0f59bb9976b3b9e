"""Where a gate closes, METHOD 7: the same lines for our own cells and for anybody's claim."""

from __future__ import annotations

MIN_NATURAL_TOKENS = 128
MIN_DECODE_SHARE = 0.70
MAX_PREFILL_SHARE = 0.30
MAX_RATE_INFLATION = 1.10
MAX_CACHED_SHARE = 0.01
MAX_LOOP_EFFECT = 0.02
MAX_COUNTER_GAP = 0.005
MAX_TPOT_GAP = 0.03
MAX_AL_GAP = 0.05
MAX_QUEUE_SHARE = 0.01
ADMISSION_STEPS = 3
MAX_LOOP_LAG_S = 0.005
MAX_CLIENT_CPU = 0.80
STREAM_MARGIN = 1.05  # gate 12: X > 1.05 · N / TPOT cannot be
SUSPICIOUS_SURVIVAL = 0.999
TOO_GOOD = "too good"  # what gate 12 is called where survival is beyond that; the one finding that may be explained
