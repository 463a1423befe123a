"""From launch plan to verdict: oracle, gate, replay, timing, interpreted tier, tuning."""
