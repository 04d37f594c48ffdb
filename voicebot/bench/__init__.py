"""`voicebot bench`: measurements, printed for people and with `--json` written for machines."""
