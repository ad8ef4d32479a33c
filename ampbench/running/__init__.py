"""The driver: schedules rounds, keeps servers, survives what goes wrong; never imports torch."""
