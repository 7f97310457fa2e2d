"""Rewards: functions in TRL's shape, run in killable processes, and judges behind a URL."""
